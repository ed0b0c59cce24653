//! The first corpus of a target: some meaningful inputs, in `corpus/TARGET/`.

use std::fs;
use std::path::Path;

/// Writes them, so that they are there when libFuzzer looks.
pub fn write(target: &str, inputs: impl IntoIterator<Item = Vec<u8>>) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let folder = corpus.join(target);
    fs::create_dir_all(&folder).expect("a folder beside the manifest can be made");
    for (at, input) in inputs.into_iter().enumerate() {
        let path = folder.join(format!("seed{at}"));
        fs::write(path, input).expect("a file can be written there");
    }
}
