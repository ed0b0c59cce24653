//! `staves mount SOURCE --nfs ADDR`: the same files by NFS, for hosts without FUSE.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use serde_json::json;
use staves_client::Dataset;
use staves_mount::NfsOptions;
use tokio::runtime::Runtime;

use super::tree::Tree;
use super::{Mount, Nodes, WantedDataset};
use staves_cli_common::codes::Own;
use staves_cli_common::failure::Failure;
use staves_cli_common::options::GlobalOptions;
use staves_cli_common::output;

/// `HOST:PORT`, or a port of this machine that others do not reach.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    let why = match text.to_socket_addrs().map(|mut all| all.next()) {
        Ok(Some(address)) => return Ok(address),
        Ok(None) => "it has no address".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(format!("{why}: give HOST:PORT, or a port alone"))
}

/// A dataset, opened to be served.
pub(super) struct Opened {
    pub tree: Tree,
    pub wanted: WantedDataset,
    pub data: Dataset,
    pub nodes: Nodes,
}

/// Serves until this process is told to end.
pub(super) fn serve(
    global: &GlobalOptions,
    mount: &Mount,
    address: SocketAddr,
    opened: Opened,
    runtime: &Runtime,
) -> anyhow::Result<()> {
    let options = NfsOptions {
        name: opened.wanted.name.clone(),
        read_ahead_bytes: mount.read_ahead.0,
        ..NfsOptions::default()
    };
    let served = staves_mount::serve_nfs(opened.tree, address, &options);
    let served = served.map_err(|e| Failure::Own(Own::Failed, e.to_string()))?;
    let address = served.address();
    let used_by = format!("{}:nfs:{address}", super::host());
    opened.data.used_by(used_by);
    runtime.spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            opened.data.refresh().await;
        }
    });
    let wanted = opened.wanted;
    let mut answer = wanted.as_json();
    answer["nfs"] = json!(address.to_string());
    answer["result"] = "serving".into();
    wanted.warn(opened.nodes, global.output, &mut answer);
    if !address.ip().is_loopback() {
        let text =
            format!("NFSv3 has no authentication: whoever reaches {address} may read all of it");
        output::warn(global.output, &mut answer, text);
    }
    let (ip, port) = (address.ip(), address.port());
    output::answer(global.output, &answer, |_| {
        format!(
            "{wanted} is served by NFS at {address}, until this ends. To mount it:\n  \
             mount -t nfs -o ro,vers=3,tcp,nolock,port={port},mountport={port} {ip}:/ DIR"
        )
    })?;
    output::flush()?;
    served
        .serve()
        .map_err(|e| Failure::Own(Own::Failed, e.to_string()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_one_that_only_this_machine_reaches() {
        assert_eq!(address("2049"), Ok(([127, 0, 0, 1], 2049).into()));
        assert_eq!(address("0.0.0.0:1"), Ok(([0, 0, 0, 0], 1).into()));
        assert!(address("[::1]:7").is_ok());
        for wrong in ["", "70000", "10.0.0.1", "nowhere:"] {
            let said = address(wrong).unwrap_err();
            assert!(said.contains("HOST:PORT"), "{said}");
        }
    }
}
