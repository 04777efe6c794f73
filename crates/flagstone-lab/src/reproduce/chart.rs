//! Charts as SVG: groups of bars, or lines over numbers.
//!
//! Owns layout and colours. Every colour is one of [`PALETTE`] or of the four that [`super::page`]
//! replaces in dark mode; a chart alone stands on white.

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::ReproduceError;
use super::figure::{Axis, Panel, Report};
use super::rule::number;

/// Colours of series, told apart by colour-blind readers too (Okabe and Ito, 2008).
const PALETTE: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0xD5, 0x5E, 0x00),
];

/// Text and axes.
pub(super) const INK: RGBColor = RGBColor(0x1F, 0x23, 0x28);
/// Lines behind the values.
pub(super) const GRID: RGBColor = RGBColor(0xD8, 0xDE, 0xE4);
/// Ground.
pub(super) const PAPER: RGBColor = RGBColor(0xFF, 0xFF, 0xFF);

const PANEL_WIDTH: u32 = 620;
const PANEL_HEIGHT: u32 = 400;
/// Height of the title and of a line of the legend.
const LINE: i32 = 24;
/// Width of a character of the legend, at its font size; generous, since the font is the reader's.
const CHARACTER: i32 = 8;
/// Share of a group's width that its bars take.
const GROUP_WIDTH: f64 = 0.8;
/// Room above the highest value, as a share of that value.
const HEADROOM: f64 = 1.12;

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plane<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// The charts of a figure beside each other, as one SVG document with title and description.
pub(crate) fn draw(report: &Report) -> Result<String, ReproduceError> {
    let columns = report.panels.len().clamp(1, 2);
    let rows = report.panels.len().div_ceil(columns).max(1);
    let size = (PANEL_WIDTH * columns as u32, PANEL_HEIGHT * rows as u32);
    let mut svg = String::new();
    let failed = |error: Box<dyn std::error::Error>| ReproduceError::Chart {
        figure: report.figure.to_owned(),
        message: error.to_string(),
    };
    draw_panels(&mut svg, size, (rows, columns), &report.panels).map_err(failed)?;
    Ok(describe(&svg, report))
}

fn draw_panels(
    svg: &mut String,
    size: (u32, u32),
    split: (usize, usize),
    panels: &[Panel],
) -> Drawn {
    let root = SVGBackend::with_string(svg, size).into_drawing_area();
    root.fill(&PAPER)?;
    for (area, panel) in root.split_evenly(split).iter().zip(panels) {
        draw_panel(area, panel)?;
    }
    root.present()?;
    Ok(())
}

fn draw_panel(area: &Canvas<'_>, panel: &Panel) -> Drawn {
    let title = ("sans-serif", 17).into_font().color(&INK);
    area.draw(&Text::new(panel.title.clone(), (16, 8), title))?;
    let head = LINE + 8 + draw_legend(area, panel)?;
    let highest = panel.series.iter().flat_map(|series| &series.values).copied();
    let highest = highest.filter(|value| value.is_finite()).fold(0.0, f64::max);
    let top = if highest > 0.0 { highest * HEADROOM } else { 1.0 };
    let (left, right) = x_range(&panel.axis);
    let mut chart = ChartBuilder::on(area)
        .margin_top(head)
        .margin_right(16)
        .margin_bottom(4)
        .margin_left(8)
        .set_label_area_size(LabelAreaPosition::Left, 72)
        .set_label_area_size(LabelAreaPosition::Bottom, 52)
        .build_cartesian_2d(left..right, 0.0..top)?;
    draw_mesh(&mut chart, panel)?;
    match &panel.axis {
        Axis::Names(names) => draw_bars(area, &chart, panel, names),
        Axis::Numbers(numbers) => draw_lines(&mut chart, panel, numbers),
    }
}

/// Draws the names of the series below the title; the height they take.
fn draw_legend(area: &Canvas<'_>, panel: &Panel) -> Result<i32, Box<dyn std::error::Error>> {
    let style = ("sans-serif", 13).into_font().color(&INK);
    let (mut x, mut y) = (16, LINE + 10);
    for (series, color) in panel.series.iter().zip(PALETTE.iter().cycle()) {
        let width = 18 + CHARACTER * series.name.chars().count() as i32 + 14;
        if x > 16 && x + width > PANEL_WIDTH as i32 {
            (x, y) = (16, y + LINE);
        }
        area.draw(&Rectangle::new([(x, y), (x + 12, y + 12)], color.filled()))?;
        area.draw(&Text::new(series.name.clone(), (x + 18, y), style.clone()))?;
        x += width;
    }
    Ok(y + LINE - LINE - 4)
}

fn x_range(axis: &Axis) -> (f64, f64) {
    match axis {
        Axis::Names(names) => (0.0, names.len().max(1) as f64),
        Axis::Numbers(numbers) => {
            let first = numbers.first().copied().unwrap_or(0.0);
            let last = numbers.last().copied().unwrap_or(1.0);
            let margin = ((last - first) * 0.03).max(f64::EPSILON);
            (first - margin, last + margin)
        }
    }
}

fn draw_mesh(chart: &mut Plane<'_, '_>, panel: &Panel) -> Drawn {
    let label = ("sans-serif", 13).into_font().color(&INK);
    let numbered = matches!(panel.axis, Axis::Numbers(_));
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(INK)
        .label_style(label.clone())
        .axis_desc_style(label)
        .y_desc(panel.y.clone())
        .x_desc(panel.x.clone())
        .y_labels(6)
        .y_label_formatter(&|value| compact(*value))
        .x_label_formatter(&|value| number(*value));
    if !numbered {
        mesh.x_labels(0);
    }
    mesh.draw()?;
    Ok(())
}

fn draw_bars(area: &Canvas<'_>, chart: &Plane<'_, '_>, panel: &Panel, names: &[String]) -> Drawn {
    let plane = chart.plotting_area();
    let width = GROUP_WIDTH / panel.series.len().max(1) as f64;
    let centred = Pos::new(HPos::Center, VPos::Bottom);
    let value_style = ("sans-serif", 12).into_font().color(&INK).pos(centred);
    let name_style = ("sans-serif", 13).into_font().color(&INK);
    let name_style = name_style.pos(Pos::new(HPos::Center, VPos::Top));
    for (group, name) in names.iter().enumerate() {
        let start = group as f64 + (1.0 - GROUP_WIDTH) / 2.0;
        for (index, (series, color)) in panel.series.iter().zip(PALETTE.iter().cycle()).enumerate()
        {
            let value = series.values.get(group).copied().unwrap_or(f64::NAN);
            if !value.is_finite() {
                continue;
            }
            let left = start + index as f64 * width;
            let corners = [(left, 0.0), (left + width * 0.94, value)];
            plane.draw(&Rectangle::new(corners, color.filled()))?;
            let top = (left + width * 0.47, value);
            plane.draw(
                &(EmptyElement::at(top) + Text::new(compact(value), (0, -3), value_style.clone())),
            )?;
        }
        let foot = plane.map_coordinate(&(group as f64 + 0.5, 0.0));
        draw_absolute(area, name, (foot.0, foot.1 + 6), &name_style)?;
    }
    Ok(())
}

/// Draws text at a position of the whole document.
fn draw_absolute(area: &Canvas<'_>, text: &str, at: (i32, i32), style: &TextStyle<'_>) -> Drawn {
    let base = area.get_base_pixel();
    area.draw(&Text::new(text.to_owned(), (at.0 - base.0, at.1 - base.1), style.clone()))?;
    Ok(())
}

fn draw_lines(chart: &mut Plane<'_, '_>, panel: &Panel, numbers: &[f64]) -> Drawn {
    for (series, color) in panel.series.iter().zip(PALETTE.iter().cycle()) {
        let points = || {
            let points = numbers.iter().copied().zip(series.values.iter().copied());
            points.filter(|(_, value)| value.is_finite())
        };
        chart.draw_series(LineSeries::new(points(), color.stroke_width(2)))?;
        chart.draw_series(points().map(|point| Circle::new(point, 4, color.filled())))?;
    }
    Ok(())
}

/// A value in few characters.
fn compact(value: f64) -> String {
    let size = value.abs();
    let (scaled, unit) = match size {
        _ if size >= 1e9 => (value / 1e9, "G"),
        _ if size >= 1e6 => (value / 1e6, "M"),
        _ if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        size if size >= 100.0 || scaled.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 => 2,
        _ => 4,
    };
    format!("{scaled:.digits$}{unit}")
}

/// Gives the document the title and the description that readers who do not see it need.
fn describe(svg: &str, report: &Report) -> String {
    let Some((head, body)) = svg.split_once('>') else { return svg.to_owned() };
    let title = super::page::escape(report.title);
    let parts: Vec<String> = report.panels.iter().map(description).collect();
    let text = super::page::escape(&parts.join(" "));
    let id = report.figure;
    format!(
        "{head} role=\"img\" aria-labelledby=\"{id}-title {id}-text\">\n\
         <title id=\"{id}-title\">{title}</title>\n<desc id=\"{id}-text\">{text}</desc>{body}"
    )
}

/// A panel in words.
fn description(panel: &Panel) -> String {
    let labels = panel.axis.labels();
    let series: Vec<String> = panel
        .series
        .iter()
        .map(|series| {
            let values: Vec<String> = labels
                .iter()
                .zip(&series.values)
                .map(|(label, value)| format!("{label}: {}", compact(*value)))
                .collect();
            format!("{}: {}", series.name, values.join(", "))
        })
        .collect();
    format!("{}, {} by {}. {}.", panel.title, panel.y, panel.x, series.join("; "))
}

#[cfg(test)]
mod tests {
    use super::compact;

    #[test]
    fn values_are_short() {
        let texts = [0.0, 0.034, 1.5, 12.25, 640.0, 12_500.0, 3_200_000.0].map(compact);
        assert_eq!(texts, ["0", "0.0340", "1.50", "12.2", "640", "12.5k", "3.20M"]);
    }
}
