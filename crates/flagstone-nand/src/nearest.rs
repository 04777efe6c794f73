//! The name that a user meant who wrote another one.
//!
//! Owns how near is near, for profiles and their keys, presets, options, tables, papers.

use alloc::format;
use alloc::string::String;

/// The candidate that `word` was probably meant for: the fewest edits away, at most a third of its length.
#[cfg(feature = "std")]
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let with_distance =
        |candidate: &'a str| (strsim::damerau_levenshtein(word, candidate), candidate);
    let (distance, found) =
        candidates.into_iter().map(with_distance).min_by_key(|(distance, _)| *distance)?;
    let size = word.chars().count().max(found.chars().count());
    (3 * distance <= size).then_some(found)
}

/// The end of a message that refuses a name: the likely meaning, or nothing.
#[must_use]
pub fn suggestion(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_near_is_suggested() {
        let names = ["flagstone", "traditional", "ls-lru", "t"];
        for (word, found) in [
            ("tradtional", Some("traditional")),
            ("ls-lur", Some("ls-lru")),
            ("lslru", Some("ls-lru")),
            ("xxxxxxx", None),
            ("lsl", None),
            ("tt", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, names), found, "{word}");
        }
        assert_eq!(nearest("word", []), None);
        assert_eq!(suggestion(Some("ls-lru")), "; did you mean `ls-lru`?");
        assert_eq!(suggestion(None), "");
    }
}
