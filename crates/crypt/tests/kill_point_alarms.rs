//! The alarm of the kill points: an operation is noticed without one of its syncs, with two of its
//! parts in the other order, or without a part. Changes that no power cut shows are listed, with
//! the reason.

mod power_cut;

use std::collections::BTreeSet;

use blockyard_crypt::backup::Backup;
use blockyard_crypt::convert;
use blockyard_crypt::format;
use blockyard_crypt::keys::{self, InPlace, Last};
use blockyard_crypt::luks::Header;
use blockyard_crypt::source::HeaderDevice;
use power_cut::{
    NEW, OLD, Recorder, Written, check_free_area, luks1, luks2, luks2_options, opens, prepared,
    secret, try_each_point, with_a_bad_copy,
};

/// Torn lengths of each write. Most faults are noticed without any.
const TEARS_MAX: usize = 2;

/// Steps that belong together: a copy of LUKS2 and its seal, or a keyslot's area.
type Part = Vec<Vec<Written>>;

/// An operation on a disk.
struct Case<'a> {
    name: &'a str,
    before: &'a [u8],
    operation: &'a dyn Fn(&mut dyn HeaderDevice),
    /// The rule that each state after a power cut must satisfy.
    rule: &'a dyn Fn(&[u8]) -> Result<(), String>,
    /// The rule of the final state. All copies of the header must be intact too.
    end: &'a dyn Fn(&[u8]) -> Result<(), String>,
    /// Faults that no power cut can tell.
    harmless: &'a [&'a str],
}

/// The parts of an operation. Steps that begin at the same byte are one, and a step that changes
/// nothing belongs to the next one: the second sector of LUKS1, which seldom has something new.
fn parts(before: &[u8], steps: Vec<Vec<Written>>) -> Vec<Part> {
    let mut disk = before.to_vec();
    let mut parts: Vec<Part> = Vec::new();
    let mut joins = false;
    for step in steps {
        let start = |step: &[Written]| step.first().map(|(at, _)| *at);
        let same = parts.last().is_some_and(|part| start(&part[0]) == start(&step));
        let old = disk.clone();
        step.iter().for_each(|(at, bytes)| disk[*at..*at + bytes.len()].copy_from_slice(bytes));
        match parts.last_mut() {
            Some(part) if joins || same => part.push(step),
            _ => parts.push(vec![step]),
        }
        joins = old == disk;
    }
    parts
}

/// The operation with each fault, by name: "0+1" has no sync between the parts 0 and 1, "1,0" has
/// them in the other order, "-0" has no part 0.
fn faults(parts: &[Part]) -> Vec<(String, Vec<Vec<Written>>)> {
    let mut faults = Vec::new();
    for index in 0..parts.len() {
        let mut others = parts.to_vec();
        let part = others.remove(index);
        faults.push((format!("-{index}"), others.concat()));
        if index + 1 == parts.len() {
            continue;
        }
        let mut swapped = parts.to_vec();
        swapped.swap(index, index + 1);
        faults.push((format!("{},{index}", index + 1), swapped.concat()));
        let mut unsynced = parts.to_vec();
        let together = [part, unsynced.remove(index + 1)].concat().concat();
        unsynced[index] = vec![together];
        faults.push((format!("{index}+{}", index + 1), unsynced.concat()));
    }
    faults
}

impl Case<'_> {
    fn check(&self, steps: &[Vec<Written>]) -> Result<usize, String> {
        let mut last = Vec::new();
        let points = try_each_point(self.before, steps, TEARS_MAX, |disk, _| {
            last = disk.to_vec();
            (self.rule)(disk)
        })?;
        (self.end)(&last)?;
        match Header::read(&last.as_slice()) {
            Ok((_, notices)) if notices.is_empty() => Ok(points),
            other => Err(format!("at the end: {other:?}")),
        }
    }

    /// Tries every fault.
    fn prove(&self) {
        let mut recorder = Recorder::of(self.before);
        (self.operation)(&mut recorder);
        let parts = parts(self.before, recorder.into_steps());
        self.check(&parts.concat()).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let is_harmless = |(_, steps): &(String, Vec<_>)| self.check(steps).is_ok();
        let found: BTreeSet<String> =
            faults(&parts).into_iter().filter(is_harmless).map(|(name, _)| name).collect();
        let listed = self.harmless.iter().map(|name| (*name).to_owned()).collect();
        let starts: Vec<_> = parts.iter().map(|part| part[0].first().map(|it| it.0)).collect();
        assert_eq!(found, listed, "{}: not noticed; its parts start at {starts:?}", self.name);
    }
}

/// Each of these passphrases opens the volume, and it has no other keyslot.
fn opens_by(disk: &[u8], passphrases: &[&[u8]]) -> Result<(), String> {
    for passphrase in passphrases {
        opens(disk, &[passphrase])?;
    }
    let keyslots = count(disk);
    if keyslots == passphrases.len() { Ok(()) } else { Err(format!("{keyslots} keyslots")) }
}

fn count(disk: &[u8]) -> usize {
    keys::of_data(&Header::read(&disk).expect("opened before").0).len()
}

/// A header names no keyslot whose area is not stable.
fn added(disk: &[u8]) -> Result<(), String> {
    opens(disk, &[OLD])?;
    if count(disk) == 2 { opens(disk, &[NEW]) } else { Ok(()) }
}

#[test]
fn fault_in_a_new_keyslot_is_noticed() {
    for (name, disk, number, harmless) in [
        // The order of the two copies does not matter.
        ("LUKS2", luks2(), 1, &["2,1"][..]),
        ("LUKS1, keyslot 5", luks1(), 5, &[]),
        // The second sector has fields of keyslot 6, and the first has its state.
        ("LUKS1, keyslot 6", luks1(), 6, &["0+1", "1,0"]),
    ] {
        let (_, new) = prepared(&disk);
        Case {
            name,
            before: &disk,
            operation: &|device| {
                keys::add(device, &new, Some(number)).unwrap();
            },
            rule: &added,
            end: &|disk| opens_by(disk, &[OLD, NEW]),
            harmless,
        }
        .prove();
    }
}

#[test]
fn fault_in_a_change_is_noticed() {
    for (name, disk, harmless) in
        [("LUKS2", luks2(), &["-1", "2+3", "2,1", "3,2", "5,4"][..]), ("LUKS1", luks1(), &[])]
    {
        let (header, new) = prepared(&disk);
        Case {
            name,
            before: &disk,
            operation: &|device| {
                keys::change(device, &header, 0, &new, InPlace::Refuse).unwrap();
            },
            rule: &|point| {
                opens(point, &[OLD, NEW])?;
                check_free_area(point, &disk)?;
                if count(point) == 2 { opens(point, &[NEW]) } else { Ok(()) }
            },
            end: &|disk| opens_by(disk, &[NEW]),
            harmless,
        }
        .prove();
    }
}

#[test]
fn fault_in_a_removal_is_noticed() {
    for (name, disk, harmless) in [("LUKS2", luks2(), &["2,1"][..]), ("LUKS1", luks1(), &[])] {
        let (_, new) = prepared(&disk);
        let mut before = disk.clone();
        keys::add(&mut before, &new, None).unwrap();
        let case = Case {
            name,
            before: &before,
            operation: &|device| keys::remove(device, None, 0, Last::Keep).unwrap(),
            rule: &|point| {
                opens(point, &[NEW])?;
                check_free_area(point, &before)
            },
            end: &|disk| opens_by(disk, &[NEW]),
            harmless,
        };
        case.prove();
        Case {
            name: "erase",
            before: &disk,
            rule: &|point| check_free_area(point, &disk),
            end: &|disk| opens_by(disk, &[]),
            operation: &|device| keys::erase(device).unwrap(),
            harmless,
        }
        .prove();
    }
}

#[test]
fn fault_in_the_repair_before_a_removal_is_noticed() {
    let empty = luks2();
    let (_, new) = prepared(&empty);
    let mut both = empty.clone();
    keys::add(&mut both, &new, None).unwrap();
    for (bad, before) in with_a_bad_copy(&both, &empty) {
        // The primary is written anew while the secondary is intact, so only a bad secondary must
        // be repaired first. The repair itself may come before or after the removed area.
        let harmless: &[&str] = if bad.contains("primary") {
            &["-0", "0+1", "1,0", "3,2"]
        } else {
            &["0+1", "1,0", "3,2"]
        };
        Case {
            name: &bad,
            before: &before,
            operation: &|device| keys::remove(device, None, 0, Last::Keep).unwrap(),
            rule: &|point| {
                opens(point, &[NEW])?;
                check_free_area(point, &before)
            },
            end: &|disk| opens_by(disk, &[NEW]),
            harmless,
        }
        .prove();
    }
}

#[test]
fn fault_in_a_restore_is_noticed() {
    for (name, empty, harmless) in [
        // The backup has a lower sequence id: the present secondary counts until it is replaced.
        ("LUKS2", luks2(), &["0+1", "1,0", "2,1"][..]),
        ("LUKS1", luks1(), &[]),
    ] {
        let (header, new) = prepared(&empty);
        let backup = Backup::of(&empty.as_slice()).unwrap();
        let mut changed = empty.clone();
        keys::change(&mut changed, &header, 0, &new, InPlace::Refuse).unwrap();
        Case {
            name,
            before: &changed,
            operation: &|device| backup.restore(device).unwrap(),
            rule: &|point| opens(point, &[OLD, NEW]),
            end: &|disk| if disk == empty { Ok(()) } else { Err("other bytes".to_owned()) },
            harmless,
        }
        .prove();
    }
}

#[test]
fn fault_in_a_conversion_is_noticed() {
    let luks1 = luks1();
    let mut luks2 = luks1.clone();
    convert::to_luks2(&mut luks2).unwrap();
    let to_luks2 = |device: &mut dyn HeaderDevice| convert::to_luks2(device).unwrap();
    let to_luks1 = |device: &mut dyn HeaderDevice| convert::to_luks1(device).unwrap();
    type Operation<'a> = &'a dyn Fn(&mut dyn HeaderDevice);
    let cases: [(&str, &[u8], Operation, &[&str]); 2] = [
        // The secondary alone opens the volume, once it is stable. Free keyslots are overwritten at
        // any time.
        ("to LUKS2", &luks1, &to_luks2, &["-6", "2+3", "3+4", "3,2", "4,3", "5+6", "6,5"]),
        // LUKS1 has no secondary: what is left of that of LUKS2 does not count.
        ("to LUKS1", &luks2, &to_luks1, &["-2"]),
    ];
    for (name, before, operation, harmless) in cases {
        Case {
            name,
            before,
            operation,
            rule: &|point| opens(point, &[OLD]),
            end: &|disk| opens_by(disk, &[OLD]),
            harmless,
        }
        .prove();
    }
}

#[test]
fn fault_in_a_new_format_is_noticed() {
    let options = luks2_options();
    for (name, before) in [("over LUKS2", luks2()), ("over LUKS1", luks1())] {
        Case {
            name,
            before: &before,
            operation: &|device| {
                format::format(device, &secret(NEW), &options).unwrap();
            },
            rule: &|point| match Header::read(&point) {
                Ok(_) => opens(point, &[OLD, NEW]),
                Err(_) => Ok(()),
            },
            end: &|disk| opens_by(disk, &[NEW]),
            harmless: &[],
        }
        .prove();
    }
}
