//! The table of metrics, against the rules of names.

use super::*;

#[test]
fn names_follow_the_rules_and_stand_once() {
    for (at, metric) in all().enumerate() {
        let name = metric.name;
        assert!(name.starts_with("staves_"), "{name}");
        assert_eq!(
            name.ends_with("_total"),
            metric.kind == MetricKind::Counter,
            "{name}: counters, and only they, end in _total"
        );
        assert!(metric.help.ends_with('.'), "{name}: {}", metric.help);
        assert!(!metric.unit.is_empty(), "{name}");
        let twice = all().skip(at + 1).any(|other| other.name == name);
        assert!(!twice, "{name} stands twice");
    }
}
