//! The cache passes the suite of all services.

use staves_conformance::cache::KeyLoad;
use staves_conformance::conforms;

#[test]
fn the_cache_conforms() {
    conforms::<KeyLoad>(6);
}
