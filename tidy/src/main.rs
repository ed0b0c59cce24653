//! Prints the counts. `staves-tidy NAME [FOLDER]` prints the places of one, those in a folder alone.

use std::collections::BTreeMap;

use staves_tidy::{Tree, ratchet};

fn main() {
    let mut args = std::env::args().skip(1);
    let counts = ratchet::count(&Tree::read());
    let Some(name) = args.next() else {
        print!("{}", ratchet::written(&counts));
        println!("\nquestion-openings by crate:");
        let mut by_crate: BTreeMap<String, usize> = BTreeMap::new();
        for place in &counts["question-openings"].places {
            *by_crate.entry(ratchet::home(place)).or_default() += 1;
        }
        for (folder, number) in by_crate {
            println!("{number:5} {folder}");
        }
        return;
    };
    let folder = args.next().unwrap_or_default();
    let places = counts.get(&name).map_or(&[][..], |count| &count.places);
    for place in places.iter().filter(|place| place.starts_with(&folder)) {
        println!("{place}");
    }
}
