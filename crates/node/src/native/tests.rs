//! Changes that people's tools and applications may propose.

use super::*;

#[test]
fn tools_change_pools_and_nothing_changes_epochs() {
    let pool = Change::DeletePool { name: "x".into() };
    let epochs = Change::CommitEpochs(Vec::new());
    assert!(may_propose(Role::Admin, &pool).is_ok());
    assert!(may_propose(Role::Client, &pool).is_err());
    for role in [Role::Admin, Role::Client, Role::Node] {
        assert!(may_propose(role, &epochs).is_err());
    }
}
