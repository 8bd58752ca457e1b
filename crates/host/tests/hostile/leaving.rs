//! Front ends that vanish, or stay and say nothing.

use super::Case;
use crate::guest::*;

/// The start of a message whose rest does not come.
fn cut(guest: &mut Guest, len: usize) {
    let message = [words(&[SET_MEM_TABLE, 1, 40]), table(&[region(0, 4096, 0)])].concat();
    guest.send(&message[..len]);
}

fn requests(guest: &mut Guest, count: u16) {
    for slot in 0..count {
        guest.push(0, slot, READ, 0, SLOT_BYTES as u32);
    }
    guest.kick(0);
}

pub(crate) const CASES: &[Case] = &[
    ("leaves in a header", "", |guest| cut(guest, 1)),
    ("leaves before a body", "", |guest| cut(guest, 12)),
    ("leaves in a body", "", |guest| cut(guest, 51)),
    ("leaves with a request in flight", "", |guest| requests(guest, 1)),
    ("leaves with many requests in flight", "", |guest| requests(guest, SLOTS)),
    ("leaves without reading its answers", "is disconnected", |guest| {
        for _ in 0..20 {
            guest.message(GET_FEATURES, 0, &[], &[]);
        }
    }),
    ("leaves when its queues are stopped", "", |guest| {
        guest.stop(0);
        guest.stop(1);
    }),
];
