//! Pages that are read beside the bucket.

use super::*;

#[test]
fn pages_that_would_be_waited_for_are_named_and_are_given_as_they_are_kept() {
    let (keeper, residency, mut pages) = on_disk(2, 2);
    assert!(pages.reserve(2));
    let at = |page: u32| u64::from(page) * PAGE_BYTES as u64;
    (60..70).for_each(|page| pages.write(at(page), &[page as u8; PAGE_BYTES]).unwrap());
    let cold = |pages: &Pages, from: u64, len: u64| {
        let mut cold = Vec::new();
        pages.cold(from, len, &mut cold);
        cold
    };
    assert_eq!(cold(&pages, 0, 2 * EXTENT), [], "all are here");
    assert_eq!(let_go(&mut pages, &keeper, 100), 10);
    keeper.near.set(65).unwrap();
    // From one extent into the next, and beyond the end; what was never written is not on the disk.
    assert_eq!(cold(&pages, at(61) + 5, at(4)), [61, 62, 63, 64]);
    assert_eq!(
        (residency.pages(), residency.reads()),
        (1, 1),
        "65 was near"
    );
    assert_eq!(cold(&pages, at(59), at(2)), [60]);
    assert_eq!(cold(&pages, at(70), 1000 * EXTENT), []);
    let put = |byte: Option<u8>| {
        move |into: &mut [u8]| {
            into.fill(byte.unwrap_or(9));
            byte.is_some()
        }
    };
    pages.give(61, &mut put(Some(61)));
    pages.give(62, &mut put(None));
    assert_eq!(
        cold(&pages, at(61), at(2)),
        [62],
        "it was not there any more"
    );
    assert_eq!(pages.slice(at(61), 2), [61, 61]);
    assert_eq!(pages.slice(at(62), 2), [62, 62], "nothing is left of a try");
    // One that is here, and was written meanwhile, stays as it is.
    pages.write(at(62), b"new").unwrap();
    pages.give(62, &mut put(Some(1)));
    assert_eq!(pages.slice(at(62), 4), [b'n', b'e', b'w', 62]);
    // So does one that was overwritten while it was on the disk alone, and one that is no more.
    pages.write(at(63), &[5; PAGE_BYTES]).unwrap();
    pages.give(63, &mut put(Some(63)));
    assert_eq!(pages.slice(at(63), 2), [5, 5]);
    pages.zero(at(64), EXTENT);
    pages.give(66, &mut put(Some(66)));
    assert_eq!(pages.slice(at(66), 2), [0, 0]);
    pages.give(10, &mut put(Some(10)));
    assert_eq!(pages.slice(at(10), 2), [0, 0], "it was never written");
    let here = residency.pages();
    drop(pages);
    assert_eq!((here, residency.pages()), (4, 0));
}
