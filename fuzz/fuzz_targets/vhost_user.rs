//! The vhost-user session. Each message of the input has one byte in front: the number of its
//! descriptors, and whether the world follows it. What comes out is checked as a world relies on
//! it.
#![no_main]

use blockyard_protocol::vhost_user::{Action, HEADER_BYTES, MemoryRegion, Offer, Outcome, Session};
use libfuzzer_sys::fuzz_target;

const QUEUES: u16 = 4;
const RING_LEN_MAX: u16 = 256;

fuzz_target!(|input: &[u8]| {
    let device_features = 1 << 9 | 1 << 11;
    let offer = Offer { device_features, queues: QUEUES, ring_len_max: RING_LEN_MAX };
    let mut session = Session::new(offer, &[7; 60]);
    let mut memory = Vec::new();
    let mut out = Vec::new();
    let mut rest = input;
    while let Some((first, after)) = rest.split_first() {
        let Some((header, after)) = after.split_first_chunk::<HEADER_BYTES>() else { return };
        let Ok(header) = session.on_header(*header) else { return };
        let Some((body, after)) = after.split_at_checked(header.body_bytes()) else { return };
        let descriptors = usize::from(first & 15);
        out.clear();
        let Ok(action) = session.on_message(header, body, descriptors, &mut out) else { return };
        let outcome = follow(&action, descriptors, first & 16 != 0, &mut memory);
        if session.finish(outcome, &mut out).is_err() {
            return;
        }
        assert!(out.len() <= HEADER_BYTES + 12 + 256, "an answer is short");
        check_queues(&session);
        rest = after;
    }
});

fn follow(
    action: &Action,
    descriptors: usize,
    fails: bool,
    memory: &mut Vec<MemoryRegion>,
) -> Outcome {
    match action {
        Action::SetMemory(regions) => {
            assert_eq!(regions.len(), descriptors);
            memory.clear();
            if fails {
                return Outcome::Failed;
            }
            memory.extend(regions);
        }
        Action::AddMemory(_) if fails => return Outcome::Failed,
        Action::AddMemory(region) => {
            assert_eq!(descriptors, 1);
            memory.push(*region);
        }
        Action::RemoveMemory(region) => {
            let place = memory.iter().position(|other| other == region);
            memory.swap_remove(place.expect("what is removed was added"));
        }
        Action::Stop(queue) => return Outcome::Stopped { queue: *queue, base: 7 },
        Action::Kick(queue) => assert!(descriptors == 1 && *queue < QUEUES),
        Action::Configure(queue) => assert!(*queue < QUEUES),
        Action::Call(queue, present) | Action::Error(queue, present) => {
            assert!(*queue < QUEUES && (!present || descriptors == 1));
        }
        Action::SetInflight(area) | Action::MakeInflight(area) => {
            assert!((1..=QUEUES).contains(&area.queues) && area.ring_len <= RING_LEN_MAX);
            assert!(u64::from(area.queues) * area.queue_bytes() <= area.len_bytes);
            assert!(area.file_offset_bytes.checked_add(area.len_bytes).is_some());
        }
        Action::SetWriteback(_) if fails => return Outcome::Failed,
        Action::Channel => assert_eq!(descriptors, 1),
        Action::SetLog(_) if fails => return Outcome::Failed,
        Action::SetLog(area) => {
            assert!(descriptors == 1 && area.len_bytes > 0);
            assert!(area.file_offset_bytes.checked_add(area.len_bytes).is_some());
        }
        Action::Nothing | Action::SetFeatures | Action::SetWriteback(_) | Action::Reset => {}
    }
    for (at, region) in memory.iter().enumerate() {
        let end = |start: u64| start.checked_add(region.len_bytes).expect("no end wraps");
        assert!(region.len_bytes > 0);
        let _ = (end(region.guest_addr), end(region.front_end_addr));
        for other in &memory[..at] {
            let apart = end(region.guest_addr) <= other.guest_addr
                || other.guest_addr + other.len_bytes <= region.guest_addr;
            assert!(apart, "two regions overlap");
        }
    }
    Outcome::Done
}

fn check_queues(session: &Session) {
    for number in 0..QUEUES {
        let queue = session.queue(number);
        assert!(queue.ring_len == 0 || queue.ring_len.is_power_of_two());
        assert!(queue.ring_len <= RING_LEN_MAX);
        if session.may_run(number) {
            let addresses = queue.addresses.expect("a queue that may run has addresses");
            assert!(addresses.descriptors.is_multiple_of(16) && addresses.used.is_multiple_of(4));
        }
    }
}
