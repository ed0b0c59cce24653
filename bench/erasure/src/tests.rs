//! The bench measures what it says, and its rows are whole.

use super::*;

fn plan() -> Plan {
    Plan {
        kernel: Kernel::best(),
        shapes: vec![(4, 2), (3, 1)],
        sizes: vec![777, 4096],
        cold_bytes: 1 << 20,
        rounds: 3,
        round: Duration::from_micros(50),
    }
}

#[test]
fn every_size_and_shape_has_a_rate_hot_and_cold() {
    let mut told = Vec::new();
    let report = run(&plan(), &[], |what| told.push(what.to_owned())).unwrap();
    assert_eq!(report.single.len(), 4);
    assert_eq!(report.codes.len(), 8);
    assert_eq!(told.len(), 5);
    let all = |row: &Row| [Some(row.encode), row.decode_one, row.decode_k];
    for rate in report.codes.iter().flat_map(all) {
        assert!(rate.is_some_and(|r| r.is_finite() && r > 0.0), "{report:?}");
    }
    assert_eq!(report.codes.iter().filter(|row| row.cold).count(), 4);
    let text = report.to_string();
    for word in ["777  cold", "4+2", "memcpy", "16x16"] {
        assert!(text.contains(word), "{word} is not in\n{text}");
    }
    let hot = Plan {
        cold_bytes: 0,
        ..plan()
    };
    assert_eq!(run(&hot, &[], |_| {}).unwrap().codes.len(), 4);
}

/// A library decodes the output of its own encoding, in the places that the trait states.
#[test]
fn what_is_made_again_is_what_was_there() {
    let (m, k, size) = (4, 2, 5000);
    let mut buffers = Buffers::new(size, m + 2 * k, 1 << 20);
    let ours = Staves::new(Kernel::best());
    for lost in [1, k] {
        let mut coder = ours.coder(m, k, size).unwrap();
        // The parity's places are the last but k for a decoding, and the last for an encoding.
        let parity: Vec<Vec<Vec<u8>>> = buffers
            .sets(0, m, k)
            .iter_mut()
            .map(|set| {
                coder.encode(set);
                set.outputs.iter().map(|o| o.to_vec()).collect()
            })
            .collect();
        let data: Vec<Vec<Vec<u8>>> = buffers
            .sets(0, m, k)
            .iter()
            .map(|set| set.sources.iter().map(|s| s.to_vec()).collect())
            .collect();
        for ((set, data), parity) in buffers
            .sets(lost, m, lost)
            .iter_mut()
            .zip(&data)
            .zip(&parity)
        {
            for (source, right) in set.sources.iter().zip(&data[lost..]) {
                assert!(source == right, "a source is the data that is left");
            }
            let sources = data[lost..].iter().chain(&parity[..lost]);
            set.sources = sources.map(Vec::as_slice).collect();
            coder.decode(set);
            assert!(set.outputs.iter().zip(data).all(|(made, was)| made == was));
        }
    }
}

#[test]
fn what_cannot_be_measured_is_refused_with_the_reason() {
    let refused = |change: fn(&mut Plan)| {
        let mut plan = plan();
        change(&mut plan);
        run(&plan, &[], |_| {}).expect_err("a bad plan").to_string()
    };
    assert!(refused(|p| p.shapes = vec![(4, 0)]).contains("k must be 1 to m"));
    assert!(refused(|p| p.shapes = vec![(2, 3)]).contains("k must be 1 to m"));
    assert!(refused(|p| p.shapes = vec![(0, 1)]).contains("m must be at least 1"));
    assert!(refused(|p| p.sizes = vec![0]).contains("bytes of a buffer"));
    assert!(refused(|p| p.rounds = 0).contains("rounds"));
    assert!(refused(|p| p.cold_bytes = COLD_MAX + 1).contains("cold"));
}
