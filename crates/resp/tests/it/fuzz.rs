//! The fuzzing target `resp` on inputs from seeds: bytes of the protocol's alphabet, and commands that
//! were changed.

#[path = "../../../../fuzz/shared/resp.rs"]
mod shared;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const COMMANDS: [&[u8]; 8] = [
    b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\nvv\r\n",
    b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
    b"*5\r\n$3\r\nset\r\n$1\r\nk\r\n$0\r\n\r\n$2\r\nNX\r\n$3\r\nGET\r\n",
    b"*3\r\n$6\r\nINCRBY\r\n$1\r\nk\r\n$2\r\n-7\r\n",
    b"*5\r\n$4\r\nMSET\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n2\r\n",
    b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n",
    b"PING \"a \\x41\" 'b'\r\n",
    b"*0\r\n*-1\r\n\r\n",
];
const ALPHABET: &[u8] = b"*$\r\n0123456789-+ \"'\\xSETGk\0\xff";

#[test]
fn twenty_thousand_inputs_break_nothing() {
    let (mut rng, mut understood) = (SmallRng::seed_from_u64(6379), 0);
    for _ in 0..20_000 {
        let mut input = vec![rng.random()];
        for _ in 0..rng.random_range(0..6) {
            if rng.random_ratio(1, 4) {
                let len = rng.random_range(0..60);
                input.extend((0..len).map(|_| ALPHABET[rng.random_range(0..ALPHABET.len())]));
                continue;
            }
            let start = input.len();
            input.extend_from_slice(COMMANDS[rng.random_range(0..COMMANDS.len())]);
            if rng.random_ratio(1, 3) {
                let at = rng.random_range(start..input.len());
                input[at] = rng.random();
            }
        }
        understood += shared::resp(&input);
    }
    assert!(
        understood > 5_000,
        "only {understood} commands were understood"
    );
}
