//! The sentences of `staves status` that the state of pools calls for.

use serde_json::Value;
use staves_model::testing::create_memory_pool;

use crate::commands::at;
use crate::fake::Fake;

/// The budgets of all pools together may be more than a node has: nothing is wrong yet, and writes are refused earlier than a pool says.
#[test]
fn status_warns_of_pools_that_may_ask_for_more_than_a_node_has() {
    let fake = Fake::start();
    let warning = |fake: &Fake| {
        let ran = at(fake, &["status", "-o", "json"]);
        let report: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        assert_eq!(report["state"], "healthy", "{report}");
        let warnings = report["warnings"].as_array().cloned().unwrap_or_default();
        let texts = warnings.iter().filter_map(|text| text.as_str());
        texts.collect::<Vec<_>>().join("\n")
    };
    let said = |text: &str| text.contains("1.5 GiB") && text.contains("node-1");
    assert!(!said(&warning(&fake)), "512 MiB of 1 GiB");
    fake.with(|state| {
        let pool = create_memory_pool("more", "1+0", 1 << 30);
        state.map.apply(None, &pool).expect("a sound change");
    });
    let text = warning(&fake);
    assert!(said(&text), "{text}");
    let ran = at(&fake, &["status"]);
    assert!(
        said(&ran.stdout) || said(&ran.stderr),
        "{}{}",
        ran.stdout,
        ran.stderr
    );
    // A script may ask for it.
    let strict = at(&fake, &["status", "--check", "--strict"]);
    assert_eq!(strict.code, Some(5), "{}", strict.stderr);
}
