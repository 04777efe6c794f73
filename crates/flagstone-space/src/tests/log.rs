//! Goal: numbers, counts and places of log pages are right. Method: single appends against counts kept here;
//! a host that has no room for some pages.

use std::vec::Vec;

use flagstone_nand::{Nand, SimNand};

use super::devices::{growing_file, options, profile, sim};
use super::protected::Protectable;
use crate::{LogAddress, LogRead, Space, SpaceError};

fn tiny_space() -> Space<SimNand> {
    Space::format(sim(&profile("tiny")), &options()).unwrap()
}

fn whole_page<D: Nand>(space: &Space<D>) -> Vec<u8> {
    vec![7; space.log_slot_size() * space.log_slots_per_page() as usize]
}

fn block_of(space: &Space<SimNand>, page: u64) -> u32 {
    space.device().geometry().block_of(space.log_place(page).unwrap()).0
}

#[test]
fn the_log_numbers_and_counts_its_pages() {
    let mut space = tiny_space();
    let page = whole_page(&space);
    assert!(space.log_budget_pages() >= u64::from(options().log_pages));
    let budget = space.log_budget_pages();
    for count in 0..budget {
        assert_eq!((space.log_range(), space.log_used_pages()), (0..count, count));
        assert_eq!(space.log_numbers(0..count), (0..count).collect::<Vec<_>>());
        if count.is_multiple_of(space.log_block_pages()) {
            assert_eq!(space.log_place(count), None, "no block has it yet");
        }
        space.log_append(&page).unwrap();
        if count.is_multiple_of(space.log_block_pages()) {
            assert!(count == 0 || block_of(&space, count) != block_of(&space, count - 1));
        } else {
            assert_eq!(block_of(&space, count), block_of(&space, count - 1));
        }
    }
    assert_eq!(space.log_numbers(3..5), [3, 4]);
    assert_eq!(space.log_numbers(budget..budget + 9), [] as [u64; 0]);
    let pages = space.log_block_pages();
    for head in 0..=budget {
        space.log_release(head);
        assert_eq!(space.log_range(), head..budget);
        space.checkpoint(b"").unwrap();
        let freed =
            if head == budget { head - 1 - (head - 1) % pages } else { head - head % pages };
        assert_eq!(space.log_used_pages(), budget - head, "behind {head}, {freed} of them free");
        assert_eq!(space.log_numbers(0..budget), (freed..budget).collect::<Vec<_>>());
        let gone = space.log_read(head.saturating_sub(1), &mut Vec::new());
        assert_eq!(gone.is_err(), head > 0);
    }
}

#[test]
fn the_rest_of_a_block_is_lost_to_a_session_that_ends() {
    let mut space = tiny_space();
    space.log_append(b"a slot").unwrap();
    assert_eq!((space.log_range(), space.log_used_pages()), (0..1, 0), "a page that goes on");
    space.log_skip_page();
    space.log_skip_page();
    assert_eq!((space.log_range(), space.log_used_pages()), (0..1, 1));
    let mut space = Space::mount(space.into_device()).unwrap().0;
    assert_eq!(space.log_used_pages(), space.log_block_pages());
    let next = space.log_append(b"a slot").unwrap();
    assert_eq!(next, LogAddress { page: space.log_block_pages(), slot: 0 });
    let mut bytes = Vec::new();
    assert_eq!(
        space.log_read(1, &mut bytes),
        Ok(LogRead::Present { damaged_slots: 0, opens_block: false })
    );
    assert!(bytes.iter().all(|byte| *byte == 0xFF), "nobody wrote there");
}

/// Goal (H4, O1): an append that the host has no room for goes to the next page, or where that page held nothing, to
/// another block; nothing that stood there before is lost.
#[test]
fn an_append_without_room_moves_on() {
    let mut space = Space::format(Protectable::new(false), &options()).unwrap();
    let at = |page, slot| LogAddress { page, slot };
    assert_eq!(space.log_append(b"first"), Ok(at(0, 0)));
    let [first, second] = [0, 1].map(|page| space.log_place(page).unwrap());
    space.device_mut().full_pages = vec![first];
    assert_eq!(space.log_append(b"second"), Ok(at(1, 0)), "the page in use has no room");
    assert_eq!(space.log_append(b"third"), Ok(at(1, 1)));
    let third = space.device().geometry().page_from_number(second.number() + 1).unwrap();
    space.device_mut().full_pages = vec![second, third];
    let pages = space.log_block_pages();
    assert_eq!(space.log_append(b"fourth"), Ok(at(pages, 0)), "the next one has none either");
    for (page, slot, text) in
        [(0, 0, "first"), (1, 0, "second"), (1, 1, "third"), (pages, 0, "fourth")]
    {
        let (mut bytes, size) = (Vec::new(), space.log_slot_size());
        space.log_read(page, &mut bytes).unwrap();
        assert_eq!(&bytes[slot * size..][..text.len()], text.as_bytes());
    }
    space.device_mut().has_no_room = true;
    let refused = space.log_append(b"fifth");
    assert!(matches!(refused, Err(SpaceError::NoRoom | SpaceError::LogFull)), "{refused:?}");
    space.device_mut().has_no_room = false;
    space.log_release(space.log_range().end);
    space.checkpoint(b"").unwrap();
    assert!(space.log_append(b"fifth").is_ok(), "with room again, and blocks");
}

/// Goal (H4): a host that lets a file grow and refuses every write is told after a few blocks, by an error. Method: a file
/// that grows, without room for any program; log pages until one is refused.
#[test]
fn a_log_without_room_for_its_heads_is_refused() {
    let (device, options) = growing_file(22, 100_000);
    let mut space = Space::format(Protectable::over(device), &options).unwrap();
    let page = whole_page(&space);
    space.log_append(&page).unwrap();
    let before = space.device().present_blocks();
    space.device_mut().has_no_room = true;
    let refused = (0..3).map(|_| space.log_append(&page)).collect::<Vec<_>>();
    for refused in refused {
        assert!(matches!(refused, Err(SpaceError::NoRoom | SpaceError::LogFull)), "{refused:?}");
    }
    let grown = space.device().present_blocks() - before;
    assert!(grown < 1_000, "{grown} blocks for a log that has no room");
    space.device_mut().has_no_room = false;
    let address = space.log_append(&page).unwrap();
    space.fence().unwrap();
    let (mut space, report) = Space::mount(space.into_device()).unwrap();
    assert!(report.log_pages.contains(&address.page), "{address:?} in {report:?}");
    let mut read = Vec::new();
    for number in [0, address.page] {
        space.log_read(number, &mut read).unwrap();
        assert_eq!(read, page, "page {number}");
    }
}
