//! Mounts a local folder at another, until SIGTERM: `folder SOURCE DIR`.

use std::path::Path;
use std::process::ExitCode;

use staves_mount::{EndSignals, Folder, Options, mount};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [source, dir] = args.as_slice() else {
        return Err("usage: folder SOURCE DIR".into());
    };
    let signals = EndSignals::catch()?;
    let files = Folder::open(Path::new(source))?;
    let options = Options {
        name: source.to_string_lossy().into_owned(),
        ..Options::default()
    };
    mount(files, Path::new(dir), &options)?.serve(signals)?;
    Ok(())
}
