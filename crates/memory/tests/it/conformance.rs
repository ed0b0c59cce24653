//! Memory passes the suite of all services.

use staves_conformance::conforms;
use staves_conformance::memory::ChunkLoad;

#[test]
fn memory_conforms() {
    conforms::<ChunkLoad>(6);
}
