//! `staves bench recovery` with nodes of its own.

use serde_json::Value;

use super::*;

fn number(of: &Value, name: &str) -> f64 {
    of[name]
        .as_f64()
        .unwrap_or_else(|| panic!("{name} of {of}"))
}

/// Row H9: recoveries alone and under reads, and pages that are rebuilt on demand.
#[test]
fn the_bench_measures_recoveries_and_pages_on_demand() {
    let args = ["--size", "4MiB", "--scheme", "2+1", "--lost", "1"];
    let load = ["--reads", "100", "--demand", "40", "-o", "json"];
    let ran = staves(&[&["bench", "recovery"][..], &args, &load].concat());
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).expect("JSON on stdout");
    let recoveries = report["recoveries"].as_array().expect("recoveries");
    assert_eq!(recoveries.len(), 2, "alone and under reads: {report}");
    for recovery in recoveries {
        // At least half of the region.
        let pages = number(recovery, "pages");
        assert!(pages >= 512.0, "{recovery}");
        let by_hand = pages * 4096.0 / number(recovery, "seconds");
        let rate = number(recovery, "bytes_per_second");
        assert!((rate / by_hand - 1.0).abs() < 0.01, "{recovery}");
        assert!(number(recovery, "processors_busy") >= 0.0, "{recovery}");
    }
    assert!(recoveries[0]["reads"].is_null() && recoveries[1]["reads"].is_object());
    let demands = report["demands"].as_array().expect("demands");
    assert_eq!(demands.len(), 3, "{report}");
    for demand in demands {
        assert_eq!(number(&demand["reads"], "answered"), 40.0, "{demand}");
        assert_eq!(number(&demand["reads"], "errors"), 0.0, "{demand}");
    }
    let share = number(&report, "resident_share");
    assert!(share > 1.5, "parity takes half as much as data: {share}");
    let once = number(&report, "proportional_share");
    assert!((1.5..share).contains(&once), "{once} of {share}");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2, "{report}");
    for (row, recovery) in rows.iter().zip(recoveries) {
        assert_eq!((number(row, "figure"), number(row, "x")), (8.0, 1.0));
        let rate = number(recovery, "bytes_per_second") / 1e6;
        assert!((number(row, "y") - rate).abs() < 0.001, "{row}");
    }
}

#[test]
fn a_recovery_that_cannot_be_is_refused_before_anything_starts() {
    for (args, says) in [
        (["--scheme", "1+1"], "two data buckets"),
        (["--lost", "3"], "does not bear the loss of 3"),
        (["--size", "1B"], "give 256 KiB or more"),
        (["--size", "900TiB"], "give a smaller --size"),
    ] {
        let ran = staves(&[&["bench", "recovery"][..], &args].concat());
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains(says), "{}", ran.stderr);
    }
}
