//! A RAID: each bio becomes bios of the members, and ends with the last of them.
//!
//! ```text
//!   bio ──> [flushes of all members] ──> cut at chunk borders ─┬─ write ──> every copy
//!                                                              └─ read ───> one copy
//! ```
//! All run in the context of the submitter, as md's do without a write-intent bitmap; the parts
//! behind a flush in the context that ends it, for md's work queue. A read goes to an idle member;
//! of busy ones to that with the fewest bios, or, if the members seek, to that whose head is
//! nearest (`read_balance` of raid10). The head is known by the last ended bio.
//!
//! Left out: bitmaps, faulty members, resync, bad blocks, the far and offset layouts.

#[cfg(test)]
mod tests;

use blockyard_engine::bio::{Bio, BlkStatus, Done, Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::slab::Slab;
use blockyard_engine::time::Nanos;

use super::super::actions::{Context, MemberId};
use super::super::config::RaidConfig;
use super::super::machine::Machine;
use super::Devices;
use crate::cpu::ThreadId;

/// A bio of the array.
#[derive(Debug)]
struct Whole {
    bio: Bio,
    thread: ThreadId,
    /// Its bios of members that have not ended.
    left: u32,
    /// Those of them that wait for a request.
    parked: u32,
    status: BlkStatus,
    /// The flushes are running; the data follows.
    flushes: bool,
}

/// A bio of a member.
#[derive(Debug)]
struct Part {
    whole: u32,
    member: MemberId,
    bytes: u64,
    /// Position of the head after it; `None` for a flush.
    head: Option<u64>,
}

/// Load of a member, from which the balance of reads chooses.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    /// Bios in flight (`nr_pending`).
    pending: u32,
    /// Sector after the last ended bio (`head_position`).
    head: u64,
}

/// The array.
#[derive(Debug)]
pub(super) struct Raid {
    config: RaidConfig,
    /// The members seek.
    rotational: bool,
    wholes: Slab<Whole>,
    parts: Slab<Part>,
    loads: Vec<Load>,
}

impl Raid {
    pub(super) fn new(config: RaidConfig, rotational: bool) -> Self {
        let loads = vec![Load::default(); usize::from(config.members)];
        let wholes = Slab::default();
        Self { config, rotational, wholes, parts: Slab::default(), loads }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.wholes.is_empty() && self.parts.is_empty()
    }

    /// Bios of the members for the next stage of a bio, in order.
    fn parts_of(&mut self, number: u32) -> Vec<(MemberId, Bio)> {
        let whole = self.wholes.get(number);
        let bio = Bio { preflush: false, ..whole.bio };
        let mut parts = Vec::new();
        if whole.flushes {
            let flush =
                Bio { fua: false, ..Bio::new(Op::Flush, Sector(0), Sector(0), BufRef::NONE, 0) };
            let flush = Bio { origin: bio.origin, ..flush };
            let members = (0..self.config.members).map(MemberId);
            parts.extend(members.map(|member| self.part(number, member, flush)));
        } else {
            let mut done = Sector(0);
            while done < bio.len {
                let start = bio.sector + done;
                let len = self.config.part(start, Sector(bio.len.0 - done.0));
                self.add_copies(number, (start, len), &bio, &mut parts);
                done = done + len;
            }
        }
        let whole = self.wholes.at(number);
        whole.left = u32::try_from(parts.len()).expect("bios are short");
        parts
    }

    /// Adds the bios for a part within a chunk: one for a read, and one for each copy otherwise.
    fn add_copies(
        &mut self,
        number: u32,
        (start, len): (Sector, Sector),
        bio: &Bio,
        parts: &mut Vec<(MemberId, Bio)>,
    ) {
        let buf = match bio.buf.len_bytes {
            0 => BufRef::NONE,
            _ => BufRef::zeros(u32::try_from(len.bytes()).expect("bios are short")),
        };
        let read_from = (bio.op == Op::Read).then(|| self.balance(start));
        for place in self.config.places(start) {
            if read_from.is_none_or(|member| member == place.member) {
                let copy = Bio { sector: Sector(place.sector), len, buf, ..*bio };
                parts.push(self.part(number, MemberId(place.member), copy));
            }
        }
    }

    /// Notes a bio of a member.
    fn part(&mut self, whole: u32, member: MemberId, bio: Bio) -> (MemberId, Bio) {
        let head = (bio.op != Op::Flush).then(|| bio.sector.0 + bio.len.0);
        self.loads[usize::from(member.0)].pending += 1;
        let number = self.parts.insert(Part { whole, member, bytes: bio.len.bytes(), head });
        (member, Bio { user: u64::from(number), ..bio })
    }

    /// The member that reads a sector: the first of equal ones.
    fn balance(&self, sector: Sector) -> u16 {
        let cost = |load: &Load, at: u64| match load.pending {
            0 => 0,
            _ if self.rotational => load.head.abs_diff(at),
            pending => u64::from(pending),
        };
        let places = self.config.places(sector);
        let nearest =
            places.min_by_key(|place| cost(&self.loads[usize::from(place.member)], place.sector));
        nearest.expect("a chunk has a copy").member
    }

    /// Replaces bios of members that have got their requests by the bios of which no part waits.
    pub(super) fn unpark(&mut self, unparked: &mut Vec<u64>) {
        unparked.retain_mut(|user| {
            let whole = self.parts.get(number(*user)).whole;
            let whole = self.wholes.at(whole);
            whole.parked -= 1;
            *user = whole.bio.user;
            whole.parked == 0
        });
    }
}

fn number(user: u64) -> u32 {
    u32::try_from(user).expect("the queue was given such a number")
}

impl Devices {
    /// Passes a bio to the members; returns whether a part waits for a request.
    pub(super) fn enters_raid(
        &mut self,
        machine: &mut Machine<'_>,
        by: Context,
        bio: Bio,
        thread: ThreadId,
    ) -> bool {
        let Some(raid) = &mut self.raid else { return false };
        let flushes = bio.preflush || bio.op == Op::Flush;
        let status = BlkStatus::Ok;
        let whole = Whole { bio, thread, left: 0, parked: 0, status, flushes };
        let number = raid.wholes.insert(whole);
        self.submit_parts(machine, by, number)
    }

    /// Submits the next stage of a bio. Each member's bio after the first costs a submission.
    fn submit_parts(&mut self, machine: &mut Machine<'_>, by: Context, number: u32) -> bool {
        let Some(raid) = &mut self.raid else { return false };
        let parts = raid.parts_of(number);
        let Whole { thread, ref bio, flushes, .. } = *raid.wholes.get(number);
        // Its submitter has paid for the first one.
        let is_first_stage = flushes || !bio.preflush;
        let further = parts.len() as u64 - u64::from(is_first_stage);
        let cost = Nanos(machine.config.costs.submit.0 * further);
        match by {
            Context::Thread(_, thread) => machine.threads[thread].defer_cost(cost),
            Context::Interrupt(cpu) => drop(machine.threads.charge(cpu, cost)),
        }
        let mut parked = 0;
        for (member, part) in parts {
            parked += u32::from(self.enters_member(machine, member, part, thread));
        }
        if let Some(raid) = &mut self.raid {
            raid.wholes.at(number).parked = parked;
        }
        parked > 0
    }

    /// Ends a bio of a member; returns the bio of the array that ends with it.
    pub(super) fn end_part(
        &mut self,
        machine: &mut Machine<'_>,
        by: Context,
        Done { user, status }: Done,
    ) -> Option<Done> {
        let raid = self.raid.as_mut()?;
        let part = raid.parts.remove(number(user));
        let load = &mut raid.loads[usize::from(part.member.0)];
        load.pending -= 1;
        load.head = part.head.unwrap_or(load.head);
        let whole = raid.wholes.at(part.whole);
        whole.left -= 1;
        if status != BlkStatus::Ok {
            whole.status = status;
        }
        let is_last = whole.left == 0;
        let has_data = whole.flushes && whole.bio.op != Op::Flush;
        whole.flushes &= !(is_last && has_data);
        self.leaves_queue(machine, (user, part.bytes), status);
        if is_last && has_data {
            self.submit_parts(machine, by, part.whole);
            self.run_queue(machine, by);
        } else if is_last {
            let Whole { bio, status, .. } = self.raid.as_mut()?.wholes.remove(part.whole);
            return Some(Done { user: bio.user, status });
        }
        None
    }
}
