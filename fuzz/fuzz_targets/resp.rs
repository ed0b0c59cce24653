//! Redis's protocol.
#![no_main]

#[path = "../shared/seeds.rs"]
mod seeds;
#[path = "../shared/resp.rs"]
mod shared;

const COMMANDS: [&str; 4] = [
    "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\nvv\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
    "PING\r\nSET k v\r\nINCRBY n -5\r\n",
    "*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n*1\r\n$7\r\nCOMMAND\r\n",
    "*4\r\n$4\r\nMSET\r\n$1\r\na\r\n$0\r\n\r\n$1\r\nb\r\n",
];

libfuzzer_sys::fuzz_target!(
    init: seeds::write("resp", COMMANDS.map(|text| [b"\x07", text.as_bytes()].concat())),
    |data: &[u8]| {
        shared::resp(data);
    }
);
