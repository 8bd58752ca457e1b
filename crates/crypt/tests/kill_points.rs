//! A power cut at every write of a header: at each point the volume opens, with the old passphrase
//! or the new one.
//!
//! Each operation runs once on a device that records its writes and syncs. Then every point is
//! replayed: after each write, after each sync, and within each write at borders of 512 bytes. Each
//! point gives two disks: all writes before it have arrived, or only those before the last sync,
//! and of the others a part of the last one.
//!
//! Where cryptsetup is installed, it opens some of the disks too.

mod power_cut;

use std::path::Path;
use std::process::{Command, Stdio};

use blockyard_crypt::Error;
use blockyard_crypt::backup::Backup;
use blockyard_crypt::convert;
use blockyard_crypt::format::{self, FormatOptions};
use blockyard_crypt::keys::{self, InPlace, Last};
use blockyard_crypt::luks::{self, Header, UnlockOptions};
use blockyard_crypt::luks2::{Priority, Token};
use blockyard_crypt::source::HeaderDevice;
use power_cut::{
    NEW, OLD, Recorder, Written, check_free_area, is_overwritten, luks1, luks2, luks2_options,
    new_keyslot, opens, prepared, secret, try_each_point, with_a_bad_copy,
};

const TOKEN: &[u8] = br#"{"type":"systemd-recovery","keyslots":["0"]}"#;
/// Borders of 512 bytes that are tried within one long write: the first, the last, and some others.
const TEARS_MAX: usize = 24;
/// Of so many points cryptsetup tries one.
const CRYPTSETUP_TRIES_ONE_OF: usize = 40;

/// The disks at all points of an operation, each given to `check` with its number.
fn for_each_point(
    before: &[u8],
    steps: &[Vec<Written>],
    mut check: impl FnMut(&[u8], usize),
) -> usize {
    let checked = try_each_point(before, steps, TEARS_MAX, |disk, number| {
        check(disk, number);
        Ok(())
    });
    checked.expect("`check` panics instead")
}

fn cryptsetup_opens(folder: &Path, disk: &[u8], passphrases: &[&[u8]]) -> bool {
    std::fs::write(folder.join("disk"), disk).unwrap();
    passphrases.iter().any(|passphrase| {
        std::fs::write(folder.join("key"), passphrase).unwrap();
        Command::new("cryptsetup")
            .args(["open", "--test-passphrase", "--key-file", "key", "disk"])
            .current_dir(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    })
}

/// Runs an operation and checks all its points. Returns the disk after it, and the points.
fn survives(
    name: &str,
    before: &[u8],
    passphrases: &[&[u8]],
    operation: impl FnOnce(&mut dyn HeaderDevice),
) -> (Vec<u8>, usize) {
    let mut recorder = Recorder::of(before);
    operation(&mut recorder);
    let after = recorder.disk.clone();
    let folder = tempfile::tempdir().unwrap();
    let has_cryptsetup = Command::new("cryptsetup").arg("--version").output().is_ok();
    let points = for_each_point(before, &recorder.into_steps(), |disk, number| {
        opens(disk, passphrases)
            .unwrap_or_else(|error| panic!("{name}: at point {number} nothing opens: {error}"));
        if has_cryptsetup && !passphrases.is_empty() && number % CRYPTSETUP_TRIES_ONE_OF == 0 {
            let opened = cryptsetup_opens(folder.path(), disk, passphrases);
            assert!(opened, "{name}: at point {number} cryptsetup opens nothing");
        }
    });
    (after, points)
}

fn every_operation_on_keys(version: &str, empty: &[u8]) -> usize {
    let mut sum = 0;
    let mut run = |name: &str,
                   before: &[u8],
                   passphrases: &[&[u8]],
                   operation: &mut dyn FnMut(&mut dyn HeaderDevice)| {
        let name = format!("{version}, {name}");
        let (disk, points) = survives(&name, before, passphrases, operation);
        sum += points;
        disk
    };
    let (header, new) = prepared(empty);
    let both = run("add", empty, &[OLD], &mut |device| {
        keys::add(device, &new, None).unwrap();
    });
    opens(&both, &[NEW]).unwrap();
    // Keyslots 6 and 7 of LUKS1 lie in both sectors of the header, or in the second.
    for number in [5, 6, 7] {
        let added = run("add a late one", empty, &[OLD], &mut |device| {
            assert_eq!(keys::add(device, &new, Some(number)).unwrap(), number);
        });
        opens(&added, &[NEW]).unwrap();
        run("remove a late one", &added, &[OLD], &mut |device| {
            keys::remove(device, None, number, Last::Keep).unwrap();
        });
    }
    let changed = run("change", empty, &[OLD, NEW], &mut |device| {
        keys::change(device, &header, 0, &new, InPlace::Refuse).unwrap();
    });
    opens(&changed, &[NEW]).unwrap();
    opens(&changed, &[OLD]).unwrap_err();
    let removed = run("remove", &both, &[NEW], &mut |device| {
        keys::remove(device, None, 0, Last::Keep).unwrap();
    });
    opens(&removed, &[OLD]).unwrap_err();
    run("uuid", empty, &[OLD], &mut |device| {
        keys::set_uuid(device, "6ba7b810-9dad-11d1-80b4-00c04fd430c8").unwrap();
    });
    let backup = Backup::of(&empty).unwrap();
    let restored = run("restore a header with fewer keyslots", &both, &[OLD], &mut |device| {
        backup.restore(device).unwrap();
    });
    opens(&restored, &[NEW]).unwrap_err();
    assert!(restored == empty, "the whole header is that of the backup");
    let restored = run("restore after a change", &changed, &[OLD, NEW], &mut |device| {
        backup.restore(device).unwrap();
    });
    assert!(restored == empty);
    sum
}

#[test]
fn luks2_volume_opens_after_a_power_cut_at_any_write_of_a_key() {
    let points = every_operation_on_keys("LUKS2", &luks2());
    assert!(points >= 1000, "{points} points");
}

#[test]
fn luks1_volume_opens_after_a_power_cut_at_any_write_of_a_key() {
    let points = every_operation_on_keys("LUKS1", &luks1());
    assert!(points >= 500, "{points} points");
}

#[test]
fn full_luks2_volume_opens_after_a_power_cut_at_any_write_of_a_change() {
    const OTHER: &[u8] = b"that of 31 keyslots";
    const AREA_LEN_BYTES: u64 = 128 << 10;
    let options = FormatOptions {
        keyslots_len_bytes: Some(33 * AREA_LEN_BYTES),
        data_offset_bytes: Some(5 << 20),
        ..luks2_options()
    };
    let mut disk = vec![0; (5 << 20) + 4096];
    format::format(&mut disk, &secret(OLD), &options).unwrap();
    let (header, new) = prepared(&disk);
    let unlocked = header.unlock(&disk, &secret(OLD), &UnlockOptions::default()).unwrap();
    let other =
        keys::prepare(&header, &unlocked.volume_key, &secret(OTHER), &new_keyslot()).unwrap();
    for number in 1..32 {
        keys::add(&mut disk, &other, Some(number)).unwrap();
    }
    let before = disk.clone();
    let refused = keys::change(&mut disk, &header, 0, &new, InPlace::Refuse).unwrap_err();
    assert!(matches!(refused, Error::Full(_)) && disk == before, "{refused}");
    let (changed, points) = survives("change of a full volume", &disk, &[OLD, NEW], |device| {
        keys::change(device, &header, 0, &new, InPlace::Allow).unwrap();
    });
    opens(&changed, &[OLD]).unwrap_err();
    assert!(is_overwritten(&changed, &disk), "the old keyslot");
    assert!(points >= 200, "{points} points");
}

#[test]
fn luks2_volume_opens_after_a_power_cut_at_any_write_of_a_field() {
    let disk = luks2();
    let damaged = {
        let mut disk = disk.clone();
        disk[5000] ^= 1;
        disk
    };
    let keep = [OLD];
    let mut sum = 0;
    let mut run = |name, before: &[u8], operation: fn(&mut dyn HeaderDevice)| {
        sum += survives(name, before, &keep, operation).1;
    };
    run("labels", &disk, |device| keys::set_labels(device, Some("a"), Some("b")).unwrap());
    run("flags", &disk, |device| keys::set_flags(device, &["allow-discards"]).unwrap());
    run("size", &disk, |device| keys::set_data_len(device, Some(4096)).unwrap());
    run("priority", &disk, |device| keys::set_priority(device, 0, Priority::Prefer).unwrap());
    let with_token = {
        let mut disk = disk.clone();
        keys::import_token(&mut disk, &Token::parse(TOKEN).unwrap(), None, None, false).unwrap();
        disk
    };
    run("token", &disk, |device| {
        let token = Token::parse(TOKEN).unwrap();
        keys::import_token(device, &token, Some(3), Some(0), false).unwrap();
    });
    run("no token", &with_token, |device| keys::remove_token(device, 0).unwrap());
    run("repair", &damaged, |device| {
        luks::repair(device).unwrap();
    });
    assert!(sum >= 500, "{sum} points");
}

/// A LUKS2 volume that LUKS1 can express.
fn plain_luks2() -> Vec<u8> {
    let options = FormatOptions {
        sector_size_bytes: 512,
        keyslots_len_bytes: Some(2 << 20),
        data_offset_bytes: Some(3 << 20),
        ..luks2_options()
    };
    let mut disk = vec![0; (3 << 20) + 4096];
    format::format(&mut disk, &secret(OLD), &options).unwrap();
    disk
}

#[test]
fn converted_volume_opens_after_a_power_cut_at_any_write() {
    let mut sum = 0;
    {
        let luks1 = luks1();
        let luks2 = plain_luks2();
        let to_luks2 = |device: &mut dyn HeaderDevice| convert::to_luks2(device).unwrap();
        let to_luks1 = |device: &mut dyn HeaderDevice| convert::to_luks1(device).unwrap();
        let (_, new) = prepared(&luks1);
        let mut two = luks1.clone();
        keys::add(&mut two, &new, Some(7)).unwrap();
        for before in [&luks1, &two] {
            let (there, points) = survives("to LUKS2", before, &[OLD], to_luks2);
            assert!(matches!(Header::read(&there).unwrap().0, Header::Luks2(_)));
            let (back, more) = survives("back to LUKS1", &there, &[OLD], to_luks1);
            assert!(matches!(Header::read(&back).unwrap().0, Header::Luks1(_)));
            assert_eq!(opens(&back, &[NEW]).is_ok(), before == &two);
            sum += points + more;
        }
        let (there, points) = survives("to LUKS1", &luks2, &[OLD], to_luks1);
        let (back, more) = survives("back to LUKS2", &there, &[OLD], to_luks2);
        opens(&back, &[OLD]).unwrap();
        sum += points + more;
    }
    assert!(sum >= 500, "{sum} points");
}

#[test]
fn restore_over_other_keyslots_at_the_same_places_keeps_a_header_that_opens() {
    // `other` is `disk` with another passphrase in one area, as cryptsetup's change leaves it.
    let disk = luks2();
    let (header, new) = prepared(&disk);
    let mut other = disk.clone();
    keys::change(&mut other, &header, 0, &new, InPlace::Refuse).unwrap();
    let (header, _) = Header::read(&other).unwrap();
    let unlocked = header.unlock(&other, &secret(NEW), &UnlockOptions::default()).unwrap();
    let new = keys::prepare(&header, &unlocked.volume_key, &secret(NEW), &new_keyslot()).unwrap();
    keys::change(&mut other, &header, 0, &new, InPlace::Refuse).unwrap();
    let backup = Backup::of(&disk).unwrap();
    let (restored, points) =
        survives("restore in place", &other, &[OLD, NEW], |device| backup.restore(device).unwrap());
    assert!(restored == disk);
    assert!(points >= 200, "{points} points");
}

#[test]
fn luks2_volume_with_a_bad_copy_opens_after_a_power_cut_at_any_write() {
    let empty = luks2();
    let (_, new) = prepared(&empty);
    let mut both = empty.clone();
    keys::add(&mut both, &new, None).unwrap();
    let mut sum = 0;
    for (bad, before) in with_a_bad_copy(&both, &empty) {
        let (_, notices) = Header::read(&before).unwrap();
        assert_eq!(notices.len(), 1, "{bad}");
        let mut run = |name: &str,
                       passphrases: &[&[u8]],
                       operation: &mut dyn FnMut(&mut dyn HeaderDevice)| {
            let (disk, points) =
                survives(&format!("{name}, {bad}"), &before, passphrases, operation);
            let (_, notices) = Header::read(&disk).unwrap();
            assert_eq!(notices, [], "{name}, {bad}: both copies are intact again");
            sum += points;
            disk
        };
        let (header, third) = prepared(&before);
        run("add", &[NEW], &mut |device| {
            keys::add(device, &third, None).unwrap();
        });
        run("change", &[NEW], &mut |device| {
            keys::change(device, &header, 0, &third, InPlace::Refuse).unwrap();
        });
        let removed = run("remove", &[NEW], &mut |device| {
            keys::remove(device, None, 0, Last::Keep).unwrap();
        });
        opens(&removed, &[OLD]).unwrap_err();
        run("remove the newer one", &[OLD], &mut |device| {
            keys::remove(device, None, 1, Last::Keep).unwrap();
        });
        run("uuid", &[NEW], &mut |device| {
            keys::set_uuid(device, "6ba7b810-9dad-11d1-80b4-00c04fd430c8").unwrap();
        });
        run("labels", &[NEW], &mut |device| keys::set_labels(device, Some("a"), None).unwrap());
        run("flags", &[NEW], &mut |device| keys::set_flags(device, &["allow-discards"]).unwrap());
        run("priority", &[NEW], &mut |device| {
            keys::set_priority(device, 1, Priority::Prefer).unwrap();
        });
        run("repair", &[NEW], &mut |device| {
            luks::repair(device).unwrap();
        });
        for backup in [&empty, &both] {
            let backup = Backup::of(backup).unwrap();
            run("restore", &[OLD], &mut |device| backup.restore(device).unwrap());
        }
        let erased = run("erase", &[], &mut |device| keys::erase(device).unwrap());
        opens(&erased, &[OLD, NEW]).unwrap_err();
    }
    assert!(sum >= 4000, "{sum} points");
}

#[test]
fn volume_never_has_a_header_without_its_keyslots_when_it_is_formatted_again() {
    let options = luks2_options();
    for before in [luks2(), luks1()] {
        let mut recorder = Recorder::of(&before);
        format::format(&mut recorder, &secret(NEW), &options).unwrap();
        let points = for_each_point(&before, &recorder.into_steps(), |disk, number| {
            if Header::read(&disk).is_ok() {
                opens(disk, &[OLD, NEW])
                    .unwrap_or_else(|error| panic!("format: at point {number}: {error}"));
            }
        });
        assert!(points >= 200, "{points} points");
    }
}

/// The points of an operation that removes keyslot 0 of both versions. `prepare` changes the disk
/// before, and `check` gets each disk, the first one, and the number.
fn for_each_point_of_a_removal(
    prepare: fn(&mut Vec<u8>),
    operation: fn(&mut dyn HeaderDevice),
    check: impl Fn(&[u8], &[u8], usize),
) -> usize {
    let mut sum = 0;
    for mut before in [luks2(), luks1()] {
        prepare(&mut before);
        let mut recorder = Recorder::of(&before);
        operation(&mut recorder);
        assert!(is_overwritten(&recorder.disk, &before));
        opens(&recorder.disk, &[OLD]).unwrap_err();
        sum += for_each_point(&before, &recorder.into_steps(), |disk, number| {
            check(disk, &before, number);
        });
    }
    sum
}

#[test]
fn header_calls_no_area_free_before_it_is_overwritten() {
    let add = |disk: &mut Vec<u8>| {
        let (_, new) = prepared(disk);
        keys::add(disk, &new, None).unwrap();
    };
    let change = |device: &mut dyn HeaderDevice| {
        let (header, _) = Header::read(&&*device).unwrap();
        let unlocked = header.unlock(&&*device, &secret(OLD), &UnlockOptions::default()).unwrap();
        let new = &new_keyslot();
        let new = keys::prepare(&header, &unlocked.volume_key, &secret(NEW), new).unwrap();
        keys::change(device, &header, 0, &new, InPlace::Refuse).unwrap();
    };
    let remove = |device: &mut dyn HeaderDevice| keys::remove(device, None, 0, Last::Keep).unwrap();
    let erase = |device: &mut dyn HeaderDevice| keys::erase(device).unwrap();
    type Case = (&'static str, fn(&mut Vec<u8>), fn(&mut dyn HeaderDevice));
    let cases: [Case; 3] =
        [("remove", add, remove), ("change", |_| (), change), ("erase", |_| (), erase)];
    for (name, prepare, operation) in cases {
        let points = for_each_point_of_a_removal(prepare, operation, |disk, before, number| {
            check_free_area(disk, before)
                .unwrap_or_else(|error| panic!("{name}: at point {number}: {error}"));
        });
        assert!(points >= 200, "{name}: {points} points");
    }
}

#[test]
fn wipe_leaves_a_volume_that_opens_or_no_header() {
    let wipe = |device: &mut dyn HeaderDevice| {
        keys::wipe(device).unwrap();
    };
    let points = for_each_point_of_a_removal(
        |_| (),
        wipe,
        |disk, _, number| {
            if Header::read(&disk).is_ok() {
                opens(disk, &[OLD])
                    .unwrap_or_else(|error| panic!("wipe: at point {number}: {error}"));
            }
        },
    );
    assert!(points >= 200, "{points} points");
}

#[test]
fn restore_of_luks1_between_keyslots_of_both_sectors_keeps_a_header_that_opens() {
    let first = luks1();
    let (_, new) = prepared(&first);
    for number in [6, 7] {
        let mut late = first.clone();
        keys::add(&mut late, &new, Some(number)).unwrap();
        keys::remove(&mut late, None, 0, Last::Keep).unwrap();
        for (before, after) in [(&late, &first), (&first, &late)] {
            let backup = Backup::of(after).unwrap();
            let restore = |device: &mut dyn HeaderDevice| backup.restore(device).unwrap();
            let (restored, _) = survives("restore of LUKS1", before, &[OLD, NEW], restore);
            opens(&restored, &[if after == &first { OLD } else { NEW }]).unwrap();
        }
    }
}
