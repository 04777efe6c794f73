//! A picture of a chip: each block a square, in a map of live pages above and in a map of wear below.
//!
//! Owns the drawing, as SVG without scripts or fonts of its own; the states of blocks come from the database. Every
//! square says its numbers when it is pointed at.

use std::fmt::Write as _;

use flagstone_space::{BlockReport, BlockState};

use crate::output::counted;

/// Text of the picture beside the blocks.
#[derive(Clone, Debug)]
pub(crate) struct Caption {
    /// Name of the chip's file.
    pub(crate) title: String,
    /// Units that a block has room for.
    pub(crate) units: u32,
    /// Least, mean and most erases, as text.
    pub(crate) erases: String,
}

/// Colour of a block in one of the maps.
type ColorOf<'a> = &'a dyn Fn(&BlockReport) -> String;

/// Side of a square, and the distance from one to the next.
const SIDE: usize = 12;
const STEP: usize = 14;
const MARGIN: usize = 44;
/// One row in so many has the number of its first block.
const ROWS_NUMBERED: usize = 4;
/// Lines of text above a map of blocks.
const HEAD: usize = 40;

/// The picture as SVG.
#[must_use]
pub(crate) fn svg(blocks: &[BlockReport], caption: &Caption) -> String {
    let columns = columns_of(blocks.len());
    let rows = blocks.len().div_ceil(columns);
    let map_height = HEAD + rows * STEP;
    let legend_top = MARGIN + 20 + 2 * map_height + 12;
    let (width, height) = ((columns * STEP).max(560) + 2 * MARGIN, legend_top + 50);
    let most = blocks.iter().map(|block| block.erases).max().unwrap_or(0);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\" \
         role=\"img\" aria-labelledby=\"title about\">\n\
         <title id=\"title\">{}</title>\n<desc id=\"about\">{}</desc>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        escaped(&caption.title),
        escaped(&about(blocks, caption))
    );
    line(&mut text, MARGIN, MARGIN + 8, "font-weight=\"bold\"", &caption.title);
    let holds = format!("Live pages, of {} in a block", caption.units);
    let worn = format!("Erases of a block: {}", caption.erases);
    let maps: [(&str, ColorOf<'_>); 2] = [
        (&holds, &|block| hold_color(block, caption.units)),
        (&worn, &|block| wear_color(block, most)),
    ];
    for (index, (head, color)) in maps.into_iter().enumerate() {
        let top = MARGIN + 20 + index * map_height;
        line(&mut text, MARGIN, top + HEAD - 12, "", head);
        for row in (0..rows).step_by(ROWS_NUMBERED) {
            let y = top + HEAD + row * STEP + SIDE - 2;
            let first = format!("{}", row * columns);
            line(&mut text, MARGIN - 6, y, "text-anchor=\"end\" font-size=\"9\"", &first);
        }
        for (number, block) in blocks.iter().enumerate() {
            let (x, y) = (MARGIN + number % columns * STEP, top + HEAD + number / columns * STEP);
            square(&mut text, x, y, &color(block), &words(block));
        }
    }
    legend(&mut text, legend_top);
    text.push_str("</svg>\n");
    text
}

/// The picture in words: how many blocks are in which state, and their erases.
fn about(blocks: &[BlockReport], caption: &Caption) -> String {
    let mut counts: Vec<(BlockState, usize)> = Vec::new();
    for block in blocks {
        match counts.iter_mut().find(|(state, _)| *state == block.state) {
            Some((_, count)) => *count += 1,
            None => counts.push((block.state, 1)),
        }
    }
    let count = |(state, count): (BlockState, usize)| format!("{count} {}", name_of(state));
    let counts: Vec<String> = counts.into_iter().map(count).collect();
    format!(
        "{} blocks: {}. Erases of a block: {}.",
        blocks.len(),
        counts.join(", "),
        caption.erases
    )
}

/// Columns of a map that is about twice as wide as high; powers of two show pages' patterns best.
fn columns_of(count: usize) -> usize {
    (1..=7).map(|power| 1 << power).find(|columns| columns * columns >= 2 * count).unwrap_or(128)
}

fn words(block: &BlockReport) -> String {
    let (number, state) = (block.block.0, name_of(block.state));
    let erases = counted(block.erases, "erase", "erases");
    format!("block {number}: {state}, {} live, {erases}", block.live)
}

/// The state's name, from the legend if it is there.
fn name_of(state: BlockState) -> &'static str {
    let in_legend = LEGEND.iter().find(|(other, _)| *other == state);
    in_legend.map_or(crate::inspect::state_name(state), |(_, name)| *name)
}

fn line(text: &mut String, x: usize, y: usize, attributes: &str, words: &str) {
    let words = escaped(words);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "<text x=\"{x}\" y=\"{y}\" {attributes}>{words}</text>");
}

fn square(text: &mut String, x: usize, y: usize, color: &str, words: &str) {
    let words = escaped(words);
    let _ = writeln!(
        text,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{SIDE}\" height=\"{SIDE}\" fill=\"{color}\" \
         stroke=\"#00000022\"><title>{words}</title></rect>"
    );
}

fn escaped(words: &str) -> String {
    // A file's name may hold characters that XML does not allow; they become marks.
    let legal = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let words: String = words.chars().map(legal).collect();
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

const LEGEND: [(BlockState, &str); 5] = [
    (BlockState::Free, "free"),
    (BlockState::Log, "log"),
    (BlockState::Ring, "anchors"),
    (BlockState::Retired, "retired"),
    (BlockState::Bad, "bad"),
];

fn legend(text: &mut String, top: usize) {
    let mut x = MARGIN;
    for (state, name) in LEGEND {
        square(text, x, top, state_color(state).unwrap_or("#ffffff"), name);
        line(text, x + SIDE + 4, top + 10, "", name);
        x += 76;
    }
    let scales: [(&str, &dyn Fn(f64) -> String); 2] =
        [("live pages, none to all", &fill_scale), ("erases, none to the most", &wear_scale)];
    for (index, (name, scale)) in scales.into_iter().enumerate() {
        let x = MARGIN + index * 280;
        for step in 0..6 {
            square(text, x + step * SIDE, top + 22, &scale(step as f64 / 5.0), name);
        }
        line(text, x + 6 * SIDE + 6, top + 32, "", name);
    }
}

/// Colour of a block without units; none for a block with units.
const fn state_color(state: BlockState) -> Option<&'static str> {
    match state {
        BlockState::Free => Some("#f4f4f4"),
        BlockState::Log => Some("#e8b21e"),
        BlockState::Ring => Some("#8a5bb5"),
        BlockState::Retired => Some("#8c8c8c"),
        BlockState::Bad => Some("#222222"),
        BlockState::Open | BlockState::Closed => None,
    }
}

fn share(part: u32, whole: u32) -> f64 {
    f64::from(part.min(whole)) / f64::from(whole.max(1))
}

fn hold_color(block: &BlockReport, units: u32) -> String {
    state_color(block.state).map_or_else(|| fill_scale(share(block.live, units)), String::from)
}

fn wear_color(block: &BlockReport, most: u32) -> String {
    match block.state {
        BlockState::Bad => String::from("#222222"),
        _ => wear_scale(share(block.erases, most)),
    }
}

/// From a pale to a dark blue, and from a pale to a dark red: told apart without colours, too.
fn fill_scale(share: f64) -> String {
    between([222, 235, 247], [8, 69, 148], share)
}

fn wear_scale(share: f64) -> String {
    between([254, 236, 220], [153, 0, 13], share)
}

fn between(pale: [u8; 3], dark: [u8; 3], share: f64) -> String {
    let mix = |index: usize| {
        let (pale, dark) = (f64::from(pale[index]), f64::from(dark[index]));
        (pale + (dark - pale) * share) as u8
    };
    format!("#{:02x}{:02x}{:02x}", mix(0), mix(1), mix(2))
}

#[cfg(test)]
mod tests {
    use flagstone_nand::BlockIndex;

    use super::*;

    fn blocks(count: u32) -> Vec<BlockReport> {
        let states = [BlockState::Free, BlockState::Closed, BlockState::Log, BlockState::Bad];
        let block = |number: u32| BlockReport {
            block: BlockIndex(number),
            state: states[number as usize % states.len()],
            live: number % 65,
            erases: number,
        };
        (0..count).map(block).collect()
    }

    fn caption(title: &str) -> Caption {
        Caption { title: title.into(), units: 64, erases: String::from("min 0, mean 1.0, max 2") }
    }

    #[test]
    fn every_block_is_drawn_twice_and_says_its_numbers() {
        for count in [0, 1, 63, 64, 1_000, 40_000] {
            let text = svg(&blocks(count), &caption("chip"));
            assert_eq!(text.matches("<title>block ").count(), 2 * count as usize, "{count}");
            assert!(!text.contains("NaN"), "{count}");
        }
        assert!(svg(&blocks(2), &caption("chip")).contains("block 1: closed, 1 live, 1 erase<"));
    }

    #[test]
    fn names_cannot_break_the_picture() {
        let text = svg(&[], &caption("a<b>&\"c\u{1b}"));
        assert!(text.contains("a&lt;b&gt;&amp;\"c\u{fffd}<"), "{text}");
    }

    #[test]
    fn scales_go_from_pale_to_dark() {
        assert_eq!((fill_scale(0.0), fill_scale(1.0)), ("#deebf7".into(), "#084594".into()));
        assert_eq!((wear_scale(0.0), wear_scale(1.0)), ("#feecdc".into(), "#99000d".into()));
    }
}
