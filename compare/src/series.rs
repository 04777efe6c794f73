//! A window slice by slice: a CSV file a measurement, a picture a workload.

use std::fmt::{Debug, Write as _};
use std::fs;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::Measured;
use crate::window::Slice;
use crate::workload::Run;

const SIZE: (u32, u32) = (1200, 960);
const TITLE: u32 = 50;
const LEGEND: i32 = 230;
const FONT: &str = "sans-serif";
/// One colour an engine, in all pictures; told apart by the colour-blind as well.
const COLOURS: &[(&str, RGBColor)] = &[
    ("flagstone", RGBColor(0xD5, 0x5E, 0x00)),
    ("berkeley", RGBColor(0x00, 0x72, 0xB2)),
    ("rocksdb", RGBColor(0x00, 0x9E, 0x73)),
    ("sqlite", RGBColor(0x8C, 0x56, 0x4B)),
    ("lmdb", RGBColor(0xCC, 0x79, 0xA7)),
    ("redb", RGBColor(0x56, 0xB4, 0xE9)),
    ("fjall", RGBColor(0x55, 0x55, 0x55)),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Writes the files of a workload.
pub fn write(directory: &Path, run: &Run, measured: &[Measured]) -> Result<()> {
    fs::create_dir_all(directory)?;
    for one in measured {
        let path = directory.join(format!("{}-{}.csv", run.name, one.engine));
        fs::write(path, table(&one.series))?;
    }
    let path = directory.join(format!("{}.svg", run.name));
    draw(&path, run, measured).map_err(|error| anyhow!("{}: {error}", path.display()))
}

/// Commits a second of each slice.
fn speeds(slices: &[Slice]) -> impl Iterator<Item = f64> {
    let mut before = (0, 0.0);
    slices.iter().map(move |slice| {
        let (commits, seconds) = before;
        before = (slice.commits, slice.seconds);
        (slice.commits - commits) as f64 / (slice.seconds - seconds)
    })
}

fn table(slices: &[Slice]) -> String {
    let mut table = String::from("seconds,commits,commits_per_s,bytes,longest_ms,file_bytes\n");
    for (slice, speed) in slices.iter().zip(speeds(slices)) {
        let Slice { seconds, commits, bytes, longest_ms, file_bytes } = slice;
        let _ = writeln!(
            table,
            "{seconds:.6},{commits},{speed:.1},{bytes},{longest_ms:.4},{file_bytes}"
        );
    }
    table
}

/// A line of a panel.
struct Line {
    colour: RGBColor,
    width: u32,
    points: Vec<(f64, f64)>,
}

fn lines(measured: &[Measured], heights: impl Fn(&[Slice]) -> Vec<f64>) -> Vec<Line> {
    let line = |one: &Measured| {
        let commits = one.series.iter().map(|slice| slice.commits as f64);
        let points = commits.zip(heights(&one.series)).collect();
        Line { colour: colour(&one.engine), width: width(&one.engine), points }
    };
    // The first engine lies on top.
    measured.iter().rev().map(line).collect()
}

fn colour(engine: &str) -> RGBColor {
    COLOURS.iter().find(|(name, _)| *name == engine).map_or(BLACK, |(_, colour)| *colour)
}

fn width(engine: &str) -> u32 {
    if engine == "flagstone" { 3 } else { 2 }
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(path: &Path, run: &Run, measured: &[Measured]) -> Drawn {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (title, body) = root.split_vertically(TITLE);
    let text = (FONT, 20).into_font().color(&BLACK);
    title.draw(&Text::new(format!("{}: {}", run.name, run.title()), (20, 15), text))?;
    let (panels, legend) = body.split_horizontally(SIZE.0 as i32 - LEGEND);
    draw_legend(&legend, measured)?;
    let counted = if run.is_written { "commits" } else { "reads" };
    let panels = panels.split_evenly((3, 1));
    let speed = lines(measured, |slices| speeds(slices).collect());
    linear(&panels[0], &format!("{counted} a second"), counted, &speed)?;
    let longest = lines(measured, |slices| slices.iter().map(|slice| slice.longest_ms).collect());
    logarithmic(&panels[1], "longest commit, ms", counted, &longest)?;
    let mib = |slice: &Slice| slice.file_bytes as f64 / f64::from(1 << 20);
    let size = lines(measured, |slices| slices.iter().map(mib).collect());
    linear(&panels[2], "files, MiB", counted, &size)?;
    root.present()?;
    Ok(())
}

/// Names of the engines, with the seconds that each took.
fn draw_legend(area: &Area<'_>, measured: &[Measured]) -> Drawn {
    let text = (FONT, 16).into_font().color(&BLACK).pos(Pos::new(HPos::Left, VPos::Center));
    for (place, one) in (0..).zip(measured) {
        let y = 30 + place * 26;
        let style = colour(&one.engine).stroke_width(2 * width(&one.engine));
        area.draw(&PathElement::new([(10, y), (40, y)], style))?;
        let label = format!("{}, {:.1} s", one.engine, one.seconds);
        area.draw(&Text::new(label, (50, y), text.clone()))?;
    }
    Ok(())
}

fn largest(lines: &[Line], of: impl Fn(&(f64, f64)) -> f64) -> f64 {
    lines.iter().flat_map(|line| &line.points).map(of).fold(0.0, f64::max)
}

fn smallest(lines: &[Line], of: impl Fn(&(f64, f64)) -> f64) -> f64 {
    lines.iter().flat_map(|line| &line.points).map(of).fold(f64::MAX, f64::min)
}

fn linear(area: &Area<'_>, what: &str, counted: &str, lines: &[Line]) -> Drawn {
    let high = largest(lines, |point| point.1) * 1.05;
    panel(area, what, counted, 0.0..high.max(1.0), lines)
}

/// From a power of ten to a power of ten.
fn logarithmic(area: &Area<'_>, what: &str, counted: &str, lines: &[Line]) -> Drawn {
    let low = 10_f64.powf(smallest(lines, |point| point.1).clamp(1e-3, 1e6).log10().floor());
    let high = 10_f64.powf(largest(lines, |point| point.1).clamp(1e-3, 1e6).log10().ceil());
    panel(area, what, counted, (low..high.max(10.0 * low)).log_scale(), lines)
}

fn panel<Y>(area: &Area<'_>, what: &str, counted: &str, range: Y, lines: &[Line]) -> Drawn
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64> + Ranged<ValueType = f64>,
    Y::Value: Debug,
{
    let right = largest(lines, |point| point.0).max(1.0);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .margin_right(25)
        .x_label_area_size(45)
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..right, range)?;
    chart
        .configure_mesh()
        .bold_line_style(BLACK.mix(0.15))
        .light_line_style(TRANSPARENT)
        .x_desc(counted)
        .y_desc(what)
        .x_labels(10)
        .y_labels(8)
        .x_label_formatter(&|x| label(*x))
        .y_label_formatter(&|y| label(*y))
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 16))
        .draw()?;
    for line in lines {
        let style = line.colour.stroke_width(line.width);
        chart.draw_series(LineSeries::new(line.points.iter().copied(), style))?;
    }
    Ok(())
}

/// A number with commas between thousands.
fn label(number: f64) -> String {
    if number < 10.0 {
        return format!("{}", (number * 1e4).round() / 1e4);
    }
    let digits = format!("{number:.0}");
    let mut label = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            label.push(',');
        }
        label.push(digit);
    }
    label
}
