use super::*;

#[test]
fn a_path_reads_back_what_it_prints() {
    let torn = Cut { until: 19, ..Cut::of(17, Ending::Torn { units: 2 }) };
    let path = CutPath(vec![torn, Cut::of(25, Ending::Untouched)]);
    assert_eq!(path.to_string(), "--cut 17+19,25 --ending torn-2,untouched");
    let both = CutPath(vec![Cut { until_ending: Ending::SpareOnly, ..torn }]);
    assert_eq!(both.to_string(), "--cut 17+19 --ending torn-2+spare-only");
    assert_eq!(CutPath::parse("17+19", "torn-2+spare-only"), Ok(both));
    assert_eq!(CutPath::parse("17+19,25", "torn-2,untouched"), Ok(path));
    assert_eq!(CutPath::parse("17", "torn-2,untouched"), Err(BadCut::Count));
    assert_eq!(CutPath::parse("x", "complete"), Err(BadCut::Operation));
    assert_eq!(CutPath::parse("1", "gone"), Err(BadCut::Ending));
}
