//! Compiles the protocol: `protox` reads it, so that no protoc is needed.

use std::path::Path;
use std::{env, fs};

use protox::prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const FILES: [&str; 2] = [
        "staves/volumes/v1/volumes.proto",
        "staves/logs/v1/logs.proto",
    ];
    for file in FILES {
        println!("cargo::rerun-if-changed=proto/{file}");
    }
    let files = protox::compile(FILES, ["proto"])?;
    // For reflection: clients ask a server for its services.
    let descriptors = Path::new(&env::var("OUT_DIR")?).join("descriptors.bin");
    fs::write(descriptors, files.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".")
        .compile_fds(files)?;
    Ok(())
}
