//! Images of a bucket: snapshots and clones, against plain copies of all bytes.

use bytes::Bytes;
use staves_model::CHUNK_BYTES;
use staves_model::mutant::{Mutant, plant};
use staves_wire::ErrorCode;
use staves_wire::memory::Action;
use staves_wire::service::Answer;

use crate::cluster::code;
use crate::image_model::{CHUNK, Content, Images, Rng, copy};

fn random_run(scheme: (u8, u8), seed: u64) -> Result<(), String> {
    let mut rng = Rng(seed);
    let mut images = Images::new(scheme);
    for step in 0..160 {
        let done = images.step(&mut rng);
        done.map_err(|error| format!("{scheme:?}, seed {seed}, step {step}: {error}"))?;
        if step % 40 == 39 {
            images.check()?;
            images.take_over();
        }
    }
    images.check()
}

#[test]
fn images_are_what_they_were_copied_from_whatever_is_written_to_others() {
    for seed in 0..20 {
        for scheme in [(1, 0), (1, 1), (2, 1)] {
            assert_eq!(random_run(scheme, seed), Ok(()));
        }
    }
}

/// A copy is the end of the session before: nothing of that is done after it.
fn copies_fence() -> Result<(), String> {
    let mut images = Images::new((1, 1));
    images.put(0, 0, b"before")?;
    let old = images.sessions[&0];
    let snapshot = images.copy(0)?;
    let late = Action::Put {
        image: 0,
        session: old,
        offset: 0,
        bytes: Bytes::from_static(b"late"),
    };
    let answer = images.run(&late);
    if code(&answer) != Some(ErrorCode::Fenced) {
        return Err(format!(
            "a write of the session before is answered {answer:?}"
        ));
    }
    images.take_over();
    let answer = images.run(&copy(0, old, 77));
    if code(&answer) != Some(ErrorCode::Fenced) {
        return Err(format!("a copy of a session before is answered {answer:?}"));
    }
    images.put(0, 3, b"after")?;
    images.check_image(snapshot)?;
    images.check_image(0)
}

#[test]
fn what_a_door_sends_in_the_session_before_a_copy_is_refused_after_it() {
    assert_eq!(copies_fence(), Ok(()));
    plant(Some(Mutant::CopyFencesNothing));
    let found = copies_fence();
    plant(None);
    assert!(found.is_err(), "a copy that fences nothing is found");
}

#[test]
fn images_whose_places_are_shared_wrongly_are_found() {
    for mutant in [Mutant::SharedPlaceOverwritten, Mutant::DropFreesShared] {
        let found = (0..20).any(|seed| {
            plant(Some(mutant));
            let found = std::panic::catch_unwind(|| random_run((1, 1), seed));
            plant(None);
            !matches!(found, Ok(Ok(())))
        });
        assert!(found, "{mutant:?} is found");
    }
}

#[test]
fn copies_share_memory_until_they_are_written_to_and_give_it_back() {
    for scheme in [(1, 1), (2, 1)] {
        let mut images = Images::new(scheme);
        for chunk in 0..100 {
            let bytes = vec![7; CHUNK];
            images.put(0, chunk * CHUNK_BYTES, &bytes).expect("room");
        }
        let used = |images: &Images| {
            let nodes = images.cluster.buckets.iter();
            let used = nodes.filter_map(|bucket| Some(bucket.member().pages()?.used()));
            used.max().unwrap_or(0)
        };
        let plain = used(&images);
        let copies: Vec<u32> = (0..8).map(|_| images.copy(0).expect("copied")).collect();
        assert!(used(&images) <= plain + 3, "eight tables");
        for chunk in 0..20 {
            images.put(0, chunk * CHUNK_BYTES + 9, b"x").expect("room");
        }
        let shared = used(&images);
        assert!(
            shared >= plain + 5 && shared <= plain + 9,
            "{plain}, then {shared}"
        );
        for image in copies {
            images.drop_image(image).expect("dropped");
        }
        images.cluster.ticks(40);
        assert!(
            used(&images) <= plain + 6,
            "{scheme:?}: {plain}, now {}",
            used(&images)
        );
        for chunk in 0..100 {
            images.zero(0, chunk * CHUNK_BYTES, CHUNK).expect("zeroed");
        }
        images.cluster.ticks(40);
        assert!(used(&images) <= 1, "{}", used(&images));
        images.check().expect("sound");
    }
}

#[test]
fn an_image_that_is_not_there_reads_as_zeroes_and_takes_no_write_without_a_fence() {
    let mut images = Images::new((1, 1));
    images.put(0, 0, b"bytes").expect("room");
    images.model.insert(9, Content::new());
    images.check_image(9).expect("zeroes");
    let put = Action::Put {
        image: 9,
        session: 5,
        offset: 0,
        bytes: Bytes::from_static(b"x"),
    };
    let answer = images.run(&put);
    assert_eq!(code(&answer), Some(ErrorCode::Fenced), "{answer:?}");
    images
        .ok(&Action::Fence {
            image: 9,
            session: 5,
        })
        .expect("begun");
    images.ok(&put).expect("written");
    assert_eq!(images.run(&Action::Drop { image: 9 }), Answer::Int(0));
    let answer = images.run(&put);
    assert_eq!(code(&answer), Some(ErrorCode::Fenced), "{answer:?}");
    // A copy of what has nothing here ends its old sessions all the same.
    images.ok(&copy(12, 4, 13)).expect("nothing to copy");
    let late = Action::Fence {
        image: 12,
        session: 3,
    };
    assert_eq!(code(&images.run(&late)), Some(ErrorCode::Fenced));
    for (of, image) in [(0, 0), (3, 3), (3, 0)] {
        let answer = images.run(&copy(of, 1, image));
        assert_eq!(code(&answer), Some(ErrorCode::Malformed), "{of} to {image}");
    }
    images.check().expect("sound");
}

#[test]
fn a_bucket_bears_so_many_images_and_says_so() {
    let mut images = Images::new((1, 1));
    images.put(0, 0, b"bytes").expect("room");
    for _ in 0..64 {
        images.copy(0).expect("one more");
    }
    let answer = images.run(&copy(0, 99, 99));
    assert_eq!(code(&answer), Some(ErrorCode::OutOfMemory), "{answer:?}");
    images.drop_image(33).expect("dropped");
    images.newest = 99;
    images.copy(0).expect("room again");
    images.check().expect("sound");
}
