//! Block devices that the kernel or another program uses.

mod lab;

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use blockyard::output::{InUse, Output};
use rustix::fs::{major, minor};
use rustix::process::Signal;

use lab::nbd::Nbd;
use lab::{Lab, LoopDevice, SMALL, claimed, noise, text};

/// Damages the secondary copy, so that `repair` has something to do.
fn damage(lab: &Lab, name: &str) {
    let file = File::options().write(true).open(lab.path(name)).unwrap();
    file.write_all_at(b"x", (16 << 10) + 0x1100).unwrap();
}

#[test]
fn mounted_device_is_read_and_never_overwritten() {
    let lab = Lab::new();
    let image = lab.volume("image");
    lab.ok(&["header", "backup", "image", "-o", "backup"]);
    damage(&lab, "image");
    let Some(device) = LoopDevice::attach(&image) else { return };
    let disk = device.path.to_str().unwrap();
    let table = format!("0 8 linear {disk} 0\n8 8 linear {disk} 8\n");
    lab.write("table", table);
    let mounted = device.claim().unwrap();
    for words in [
        &[&["format", disk, "-q", "-d", "pass"][..], &SMALL].concat()[..],
        &["header", "restore", disk, "-q", "-i", "backup"],
        &["header", "convert", disk, "-q", "--type", "luks1"],
        &["header", "wipe", disk, "-q"],
        &["repair", disk, "-q"],
        &["resize", disk, "-q", "--size", "8"],
        &["load", disk, "-d", "pass", "-i", "pass"],
        &["serve", disk, "-d", "pass", "--socket", "s"],
        &["serve", disk, "-d", "pass", "--socket", "s", "--shared"],
        &["serve", "--table", "table", "--socket", "s"],
        &["bench", "--raw", disk, "--destroy", "--", "rw=write", "bs=4k", "size=64k"],
        &["dump", "image", "-d", "pass", "-o", disk, "--force"],
    ] {
        let before = lab.read("image");
        let said = lab.refused(words, 5);
        assert!(said.contains("in use"), "{words:?}: {said}");
        assert!(lab.read("image") == before, "{words:?}");
    }
    lab.ok(&["dump", disk, "-d", "pass", "-o", "plain"]);
    drop(lab.serve(&[disk, "-d", "pass", "--socket", "s", "--read-only"]));
    // A volume may be open while its keys and its labels change.
    lab.ok(&["header", "label", disk, "--label", "home"]);
    drop(mounted);
    drop(lab.serve(&["--table", "table", "--socket", "s"]));
    lab.ok(&["header", "restore", disk, "-q", "-i", "backup"]);
}

#[test]
fn served_device_cannot_be_mounted_and_two_servers_may_share_it() {
    let lab = Lab::new();
    let image = lab.write("image", noise(1 << 20, 1));
    let Some(device) = LoopDevice::attach(&image) else { return };
    lab.write("table", format!("0 2048 linear {} 0\n", device.path.display()));
    let words = |socket| ["serve", "--table", "table", "--socket", socket];
    let served = |socket, how: &[&str]| lab.serve(&[&words(socket)[1..], how].concat());
    let alone = served("s", &[]);
    assert!(device.claim().is_none());
    lab.refused(&words("t"), 5);
    drop(alone);
    let servers = [served("s", &["--shared"]), served("t", &["--shared"])];
    assert!(device.claim().is_none());
    lab.refused(&words("u"), 5);
    drop(servers);
    let mounted = device.claim().unwrap();
    let reader = served("s", &["--read-only"]);
    let said = lab.refused(&[&words("t")[..], &["--shared"]].concat(), 5);
    assert!(said.contains("in use"), "a reader is no owner of the device: {said}");
    drop((reader, mounted));
    drop(served("s", &[]));
}

#[test]
fn header_of_a_device_is_changed_without_cryptsetups_lock_only_with_a_warning() {
    let lab = Lab::new();
    let cheap = ["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"];
    lab.ok(&[&["format", "image", "--size", "20M", "-d", "pass"][..], &cheap].concat());
    lab.write("new", "another passphrase");
    lab.write("token", r#"{"type":"user","keyslots":[]}"#);
    let Some(device) = LoopDevice::attach(&lab.path("image")) else { return };
    let disk = device.path.to_str().unwrap();
    // Only root may use cryptsetup's folder of locks.
    let nobody = 65_534;
    let as_nobody = |words: &[&str]| {
        let mut command = lab.blockyard(words);
        command.uid(nobody).gid(nobody);
        command.output()
    };
    fs::set_permissions(lab.path("."), Permissions::from_mode(0o755)).unwrap();
    if !as_nobody(&["--version"]).is_ok_and(|output| output.status.success()) {
        return;
    }
    let node = fs::metadata(&device.path).unwrap();
    chown(&device.path, Some(nobody), Some(nobody)).unwrap();
    let outputs: Vec<_> = [
        &["header", "label", disk, "--label", "home"][..],
        &["header", "uuid", disk, "--uuid", "5f0a7a5c-9a0f-4a34-8b9e-4a8f5f3c2d11"],
        &["header", "flags", disk, "--none"],
        &[&["key", "add", disk, "-d", "pass", "--new-keyfile", "new"][..], &cheap].concat(),
        &[&["key", "convert", disk, "-S", "1", "-d", "new"][..], &cheap].concat(),
        &["key", "priority", disk, "-S", "1", "--priority", "prefer"],
        &["key", "kill", disk, "1", "-q"],
        &["token", "import", disk, "--json-file", "token"],
        &["token", "remove", disk, "--token-id", "0"],
        &["resize", disk, "--size", "8", "-q"],
        &["header", "convert", disk, "--type", "luks2", "-q"],
        &["erase", disk, "-q"],
    ]
    .map(|words| (words.to_vec().join(" "), as_nobody(words).unwrap()))
    .into();
    chown(&device.path, Some(node.uid()), Some(node.gid())).unwrap();
    for (words, output) in outputs {
        let said = text(&output.stderr);
        let warnings = said.matches("warning: ").count();
        assert_eq!(warnings, 1, "{words}: {said}");
        assert!(said.contains("no lock in /run/cryptsetup"), "{words}: {said}");
        assert!(output.status.success() || words.contains("luks2"), "{words}: {said}");
    }
}

#[test]
fn header_is_read_anew_after_a_change_under_another_name_of_the_device() {
    let lab = Lab::new();
    let cheap = ["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"];
    lab.ok(&[&["format", "image", "--size", "20M", "-d", "pass"][..], &cheap].concat());
    for name in ["new", "third"] {
        lab.write(name, name);
    }
    let Some(device) = LoopDevice::attach(&lab.path("image")) else { return };
    let disk = device.path.to_str().unwrap();
    // The page cache of a device lives as long as somebody has the device open.
    let _open = File::open(&device.path).unwrap();
    fs::read(&device.path).unwrap();
    let add = |volume, new| {
        lab.ok(&[&["key", "add", volume, "-d", "pass", "--new-keyfile", new][..], &cheap].concat());
    };
    add("image", "new");
    lab.ok(&["dump", disk, "-d", "new", "-o", "plain"]);
    fs::read(&device.path).unwrap();
    add(disk, "third");
    for name in ["pass", "new", "third"] {
        lab.ok(&["dump", "image", "-d", name, "-o", "plain", "--force"]);
    }
    lab.ok(&["key", "remove", "image", "-d", "new"]);
    lab.ok(&["key", "remove", "image", "-d", "third"]);
    let said = lab.refused(&["key", "remove", disk, "-d", "pass"], 1);
    assert!(said.contains("is the last one that opens the volume"), "{said}");
}

#[test]
fn file_of_a_loop_device_and_the_device_have_one_writer() {
    let lab = Lab::new();
    let image = lab.volume("image");
    lab.write("data", noise(4096, 1));
    let Some(device) = LoopDevice::attach(&image) else { return };
    let disk = device.path.to_str().unwrap();
    for (one, other) in [("image", disk), (disk, "image")] {
        let _server = lab.serve(&[one, "-d", "pass", "--socket", "s"]);
        let load = ["load", other, "-d", "pass", "-i", "data", "--allow-short"];
        let said = lab.refused(&load, 5);
        assert!(said.contains("in use"), "{said}");
    }
    let readers = [("image", "s"), (disk, "t")].map(|(volume, socket)| {
        lab.serve(&[volume, "-d", "pass", "--socket", socket, "--read-only"])
    });
    drop(readers);
    let before = lab.read("image");
    for (from, to) in [("image", disk), (disk, "image")] {
        let said = lab.refused(&["dump", from, "-d", "pass", "-o", to, "--force"], 5);
        assert!(said.contains("in use"), "{said}");
    }
    let _reader = lab.serve(&["image", "-d", "pass", "--socket", "s", "--read-only"]);
    lab.refused(&["load", disk, "-d", "pass", "-i", "data", "--allow-short"], 5);
    assert!(lab.read("image") == before);
}

/// As `cryptsetup` does that writes the header of this device.
fn lock_of_cryptsetup(device: &LoopDevice) -> File {
    let number = fs::metadata(&device.path).unwrap().rdev();
    let _ = fs::create_dir("/run/cryptsetup");
    let name = format!("/run/cryptsetup/L_{}:{}", major(number), minor(number));
    let file = File::options().write(true).create(true).truncate(false).open(name).unwrap();
    file.try_lock().unwrap();
    file
}

/// Names of one volume: a loop device on a loop device, one that was made by a name that is no
/// text, and one whose name was taken by another file.
#[test]
fn all_loop_devices_over_a_file_and_the_file_have_one_writer() {
    let lab = Lab::new();
    let image = lab.volume("image");
    let Some(lower) = LoopDevice::attach(&image) else { return };
    let odd = image.with_file_name(OsStr::from_bytes(b"\xe9"));
    fs::hard_link(&image, &odd).unwrap();
    let upper = LoopDevice::attach(&lower.path).unwrap();
    let odd = LoopDevice::attach(&odd).unwrap();
    let devices = [&lower.path, &upper.path, &odd.path].map(|path| path.to_str().unwrap());
    let names = [&["image"][..], &devices].concat();
    for &one in &names {
        let _server = lab.serve(&[one, "-d", "pass", "--socket", "s"]);
        for &other in &names {
            let load = ["load", other, "-d", "pass", "-i", "pass", "--allow-short"];
            let said = lab.refused(&load, 5);
            assert!(said.contains("in use"), "{one} {other}: {said}");
        }
    }
    // A writer of the header takes the lock of the file, and those of cryptsetup's devices.
    let label = |name| ["header", "label", name, "--label", "home"];
    let file = File::open(&image).unwrap();
    file.try_lock().unwrap();
    for &name in &names {
        let said = lab.refused(&label(name), 5);
        assert!(said.contains("the lock of the LUKS header"), "{name}: {said}");
    }
    drop(file);
    for device in [&lower, &upper] {
        let lock = lock_of_cryptsetup(device);
        for &name in names.iter().filter(|name| !name.contains(odd.path.to_str().unwrap())) {
            let said = lab.refused(&label(name), 5);
            assert!(said.contains("the lock of the LUKS header"), "{name}: {said}");
        }
        drop(lock);
    }
    for &name in &names {
        lab.ok(&label(name));
    }
    // `udevadm lock` holds this lock for the program that it runs.
    let node = File::open(&lower.path).unwrap();
    node.try_lock().unwrap();
    let said = text(&lab.ok(&label(lower.path.to_str().unwrap())).stderr);
    assert!(said.contains("has locked this device with flock"), "{said}");
    drop(node);
    // As if it were mounted.
    let _mounted = lower.claim().unwrap();
    let load = ["load", upper.path.to_str().unwrap(), "-d", "pass", "-i", "pass", "--allow-short"];
    let said = lab.refused(&load, 5);
    assert!(said.contains("in use"), "{said}");
}

#[test]
fn header_of_a_loop_device_without_its_file_is_written_with_a_warning() {
    let lab = Lab::new();
    let image = lab.volume("image");
    let Some(device) = LoopDevice::attach(&image) else { return };
    let disk = device.path.to_str().unwrap();
    let label = ["header", "label", disk, "--label", "home"];
    let warning = |lab: &Lab| {
        let output = lab.run(&label);
        assert!(output.status.success());
        let said = text(&output.stderr);
        said.lines().filter(|line| line.contains("warning: ")).collect::<String>()
    };
    assert_eq!(warning(&lab), "");
    fs::rename(&image, lab.path("away")).unwrap();
    assert_eq!(warning(&lab), "", "the kernel follows a renamed file");
    fs::hard_link(lab.path("away"), lab.path("other")).unwrap();
    fs::remove_file(lab.path("away")).unwrap();
    // The lock of a file that has the name now is of no use.
    lab.write("away (deleted)", "");
    let decoy = File::open(lab.path("away (deleted)")).unwrap();
    decoy.try_lock().unwrap();
    let said = warning(&lab);
    assert!(said.contains("no lock of the file under this loop device (another file"), "{said}");
    fs::remove_file(lab.path("away (deleted)")).unwrap();
    let said = warning(&lab);
    assert!(said.contains("no lock of the file under this loop device"), "{said}");
    // The data of a volume has a lock of its own.
    let load = ["load", disk, "-d", "pass", "-i", "pass", "--allow-short"];
    let said = text(&lab.ok(&load).stderr);
    assert!(said.contains("no lock of the file under this loop device"), "{said}");
}

/// The page cache of the lower device does not see what is written by the name of the file.
#[test]
fn key_that_was_added_by_another_name_is_kept_by_a_loop_device_on_a_loop_device() {
    let lab = Lab::new();
    let cheap = ["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"];
    lab.ok(&[&["format", "image", "--size", "20M", "-d", "pass"][..], &cheap].concat());
    lab.write("new", "new");
    lab.write("third", "third");
    let Some(lower) = LoopDevice::attach(&lab.path("image")) else { return };
    let upper = LoopDevice::attach(&lower.path).unwrap();
    let disk = upper.path.to_str().unwrap();
    lab.ok(&["key", "list", disk]);
    for (name, key) in [("image", "new"), (disk, "third")] {
        let add = ["key", "add", name, "-d", "pass", "--new-keyfile", key];
        lab.ok(&[&add[..], &cheap].concat());
    }
    for (name, key) in [("image", "third"), (disk, "new")] {
        lab.ok(&["dump", name, "-d", key, "-o", "plain", "--force"]);
    }
}

/// A writer by the name of the file does not see the lock of the device.
#[test]
fn header_of_a_loop_device_on_a_file_of_fuse_has_one_writer() {
    let lab = Lab::new();
    let cheap = ["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"];
    lab.ok(&[&["format", "outer", "--size", "20M", "-d", "pass"][..], &cheap].concat());
    fs::create_dir(lab.path("dir")).unwrap();
    if !lab.run(&["mount", "outer", "dir", "--as-file", "-d", "pass"]).status.success() {
        println!("skipped, because this machine refuses FUSE");
        return;
    }
    if let Some(device) = LoopDevice::attach(&lab.path("dir/outer")) {
        let disk = device.path.to_str().unwrap();
        let format = [&["format", disk, "-q", "-d", "pass"][..], &SMALL].concat();
        lab.ok(&format);
        let label = ["header", "label", disk, "--label", "home"];
        let other = File::options().read(true).write(true).open(lab.path("dir/outer")).unwrap();
        other.try_lock().unwrap();
        for words in [&label[..], &format] {
            let said = lab.refused(words, 5);
            assert!(said.contains("the lock of the LUKS header"), "{words:?}: {said}");
        }
        lab.ok(&["key", "list", disk]);
        other.unlock().unwrap();
        let server = lab.serve(&[disk, "-d", "pass", "--socket", "s"]);
        lab.ok(&label);
        drop(server);
        lab.ok(&format);
    }
    lab.ok(&["umount", "dir"]);
}

/// The first partition of a loop device, from 1 MiB to 5 MiB.
struct Partition<'a>(&'a LoopDevice);

impl<'a> Partition<'a> {
    /// `None` where this machine makes none.
    fn added(disk: &'a LoopDevice) -> Option<Self> {
        let added = Command::new("addpart").arg(&disk.path).args(["1", "2048", "8192"]).status();
        added.is_ok_and(|added| added.success()).then_some(Self(disk))
    }

    fn path(&self) -> PathBuf {
        format!("{}p1", self.0.path.display()).into()
    }
}

impl Drop for Partition<'_> {
    /// A partition outlives the end of its loop device, and the kernel refuses while a closed one
    /// is in use for a last moment.
    fn drop(&mut self) {
        let mut delete = Command::new("delpart");
        let delete = delete.arg(&self.0.path).arg("1");
        let start = Instant::now();
        while !delete.status().is_ok_and(|deleted| deleted.success())
            && start.elapsed() < Duration::from_secs(10)
        {}
    }
}

/// A device node that another user owns for a while.
struct Lent(PathBuf, fs::Metadata);

fn lend(node: &Path, user: u32) -> Lent {
    let before = fs::metadata(node).unwrap();
    chown(node, Some(user), Some(user)).unwrap();
    Lent(node.to_path_buf(), before)
}

impl Drop for Lent {
    fn drop(&mut self) {
        chown(&self.0, Some(self.1.uid()), Some(self.1.gid())).unwrap();
    }
}

/// A partition, and a loop device over a place beside it.
#[test]
fn partition_that_is_in_use_excludes_only_its_own_place_of_the_disk() {
    let lab = Lab::new();
    let disk_file = lab.write("disk", vec![0; 12 << 20]);
    let Some(disk) = LoopDevice::attach(&disk_file) else { return };
    let Some(part) = Partition::added(&disk) else {
        println!("skipped, because this machine makes no partitions of loop devices");
        return;
    };
    let part_path = part.path();
    let [part_name, disk_name] = [&part_path, &disk.path].map(|path| path.to_str().unwrap());
    let format = |name| [&["format", name, "-q", "-d", "pass"][..], &SMALL].concat();
    lab.ok(&format(part_name));
    let beside = LoopDevice::attach_with(&disk.path, &["--offset", "6M", "--sizelimit", "4M"]);
    let beside = beside.unwrap();
    let same = LoopDevice::attach_with(&disk.path, &["--offset", "1M", "--sizelimit", "4M"]);
    let same = same.unwrap();
    let [beside_name, same_name] = [&beside, &same].map(|device| device.path.to_str().unwrap());
    // Its server claims the partition, or a mount the whole disk: that cannot be told.
    let server = lab.serve(&[part_name, "-d", "pass", "--socket", "s"]);
    lab.refused(&format(beside_name), 5);
    let said = lab.refused(&format(same_name), 5);
    assert!(said.contains("in use") && said.contains(part_name), "{said}");
    lab.refused(&format(disk_name), 5);
    drop(server);
    fs::create_dir(lab.path("dir")).unwrap();
    let succeeds = |command: &mut Command| command.status().is_ok_and(|ended| ended.success());
    if succeeds(Command::new("mkfs.ext4").args(["-q", part_name])) {
        let point = lab.path("dir");
        assert!(succeeds(Command::new("mount").arg(&part_path).arg(&point)));
        let mounted = Mounted(&point);
        lab.ok(&format(beside_name));
        lab.refused(&format(same_name), 5);
        drop(mounted);
        lab.ok(&format(part_name));
    }
    // The whole disk may be mounted, and its partitions are left from an earlier use.
    // A reader of one has a lock and no claim.
    let whole = disk.claim().unwrap();
    lab.refused(&format(beside_name), 5);
    let reader = lab.serve(&[part_name, "-d", "pass", "--socket", "s", "--read-only"]);
    lab.refused(&format(beside_name), 5);
    drop((whole, reader));
    // A user who cannot open the partition cannot know.
    let held = claimed(&part_path).unwrap();
    let nobody = 65_534;
    fs::set_permissions(lab.path("."), Permissions::from_mode(0o755)).unwrap();
    let own: Vec<_> = [&same.path, &disk.path, &disk_file].map(|file| lend(file, nobody)).into();
    let mut command = lab.blockyard(&format(same_name));
    let output = command.uid(nobody).gid(nobody).output().unwrap();
    drop(own);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    drop(held);
    let over = LoopDevice::attach(&part_path).unwrap();
    let over_name = over.path.to_str().unwrap();
    for names in [[part_name, over_name], [over_name, part_name]] {
        let _servers = ["s", "t"].map(|socket| {
            let name = names[usize::from(socket == "t")];
            lab.serve(&[name, "-d", "pass", "--socket", socket, "--shared"])
        });
    }
    // As on a disk that is no loop device: only the lock of the partition is there.
    fs::remove_file(&disk_file).unwrap();
    let _server = lab.serve(&[over_name, "-d", "pass", "--socket", "s"]);
    let said = lab.refused(&format(same_name), 5);
    assert!(said.contains("in use") && said.contains(part_name), "{said}");
}

/// Makes a file system; false where this machine cannot.
fn has_ext4(device: &Path) -> bool {
    let made = Command::new("mkfs.ext4").arg("-q").arg(device).status();
    made.is_ok_and(|made| made.success())
}

/// The claim of a shared disk ends with the first server, so its partition can be mounted then.
#[test]
fn mounted_partition_is_in_use_while_its_disk_is_shared() {
    let lab = Lab::new();
    let Some(disk) = LoopDevice::attach(&lab.write("disk", vec![0; 12 << 20])) else { return };
    let Some(part) = Partition::added(&disk) else { return };
    let same = LoopDevice::attach_with(&disk.path, &["--offset", "1M", "--sizelimit", "4M"]);
    let same = same.unwrap();
    for (table, device) in [("of-disk", &disk), ("of-same", &same)] {
        lab.write(table, format!("0 2048 linear {} 0\n", device.path.display()));
    }
    let words = |table, socket| ["serve", "--table", table, "--socket", socket, "--shared"];
    let served = |table, socket| lab.serve(&words(table, socket)[1..]);
    let part_path = part.path();
    if !has_ext4(&part_path) {
        return;
    }
    let first = served("of-disk", "s");
    let _second = served("of-disk", "t");
    drop(served("of-same", "u"));
    drop(first);
    let point = lab.path("dir");
    fs::create_dir(&point).unwrap();
    assert!(Command::new("mount").arg(&part_path).arg(&point).status().unwrap().success());
    let _mounted = Mounted(&point);
    let said = lab.refused(&words("of-same", "u"), 5);
    assert!(said.contains("in use") && said.contains(part_path.to_str().unwrap()), "{said}");
}

#[test]
fn partition_is_in_use_while_it_is_mounted_though_another_server_shares_it() {
    let lab = Lab::new();
    let Some(disk) = LoopDevice::attach(&lab.write("disk", vec![0; 12 << 20])) else { return };
    let Some(part) = Partition::added(&disk) else { return };
    let part_path = part.path();
    lab.write("table", format!("0 2048 linear {} 0\n", part_path.display()));
    if !has_ext4(&part_path) {
        return;
    }
    let words = |socket| ["serve", "--table", "table", "--socket", socket, "--shared"];
    let [first, _second] = ["s", "t"].map(|socket| lab.serve(&words(socket)[1..]));
    drop(first);
    let point = lab.path("dir");
    fs::create_dir(&point).unwrap();
    assert!(Command::new("mount").arg(&part_path).arg(&point).status().unwrap().success());
    let _mounted = Mounted(&point);
    let said = lab.refused(&words("u"), 5);
    assert!(said.contains("in use"), "{said}");
    lab.write("table", format!("0 2048 linear {} 0\n", disk.path.display()));
    let said = lab.refused(&words("u"), 5);
    assert!(said.contains("in use"), "{said}");
}

#[test]
fn mounted_disk_is_in_use_for_a_loop_device_over_it_though_a_server_shares_it() {
    let lab = Lab::new();
    let Some(disk) = LoopDevice::attach(&lab.write("disk", vec![0; 12 << 20])) else { return };
    if !has_ext4(&disk.path) {
        return;
    }
    let over = LoopDevice::attach(&disk.path).unwrap();
    for (table, device) in [("disk.table", &disk), ("over.table", &over)] {
        lab.write(table, format!("0 2048 linear {} 0\n", device.path.display()));
    }
    let words = |table, socket| ["serve", "--table", table, "--socket", socket, "--shared"];
    let [first, _second] = ["s", "t"].map(|socket| lab.serve(&words("disk.table", socket)[1..]));
    drop(first);
    let point = lab.path("dir");
    fs::create_dir(&point).unwrap();
    assert!(Command::new("mount").arg(&disk.path).arg(&point).status().unwrap().success());
    let _mounted = Mounted(&point);
    let said = lab.refused(&words("over.table", "u"), 5);
    assert!(said.contains("in use"), "{said}");
}

/// As on a disk that is no loop device: only the lock of the partition is there, and no claim.
#[test]
fn whole_disk_is_in_use_while_a_loop_device_over_its_partition_is_served() {
    let lab = Lab::new();
    let disk_file = lab.write("disk", vec![0; 12 << 20]);
    let Some(disk) = LoopDevice::attach(&disk_file) else { return };
    let Some(part) = Partition::added(&disk) else { return };
    let part_path = part.path();
    let [part_name, disk_name] = [&part_path, &disk.path].map(|path| path.to_str().unwrap());
    let format = |name| [&["format", name, "-q", "-d", "pass"][..], &SMALL].concat();
    lab.write("pass", "pass");
    lab.ok(&format(part_name));
    let over = LoopDevice::attach(&part_path).unwrap();
    let over_name = over.path.to_str().unwrap();
    let beside = LoopDevice::attach_with(&disk.path, &["--offset", "6M"]).unwrap();
    fs::remove_file(&disk_file).unwrap();
    let shared = lab.serve(&[over_name, "-d", "pass", "--socket", "s", "--shared"]);
    lab.refused(&format(disk_name), 5);
    drop(shared);
    let server = lab.serve(&[over_name, "-d", "pass", "--socket", "s"]);
    let said = lab.refused(&format(disk_name), 5);
    assert!(said.contains("in use") && said.contains(part_name), "{said}");
    let dump = ["dump", part_name, "-d", "pass", "-o", disk_name, "--force"];
    assert!(!lab.run(&dump).status.success());
    // A reader of the whole disk, and a writer of another place, are let in.
    lab.refused(&["info", disk_name], 4);
    lab.ok(&format(beside.path.to_str().unwrap()));
    drop(server);
    // The other way round: a writer of the disk's place, without its claim.
    let place = LoopDevice::attach_with(&disk.path, &["--offset", "1M", "--sizelimit", "4M"]);
    let place = place.unwrap();
    let server = lab.serve(&[place.path.to_str().unwrap(), "-d", "pass", "--socket", "s"]);
    let said = lab.refused(&format(part_name), 5);
    assert!(said.contains("in use") && said.contains(disk_name), "{said}");
    drop(server);
    lab.ok(&format(part_name));
}

/// The first server ends without a flush, and leaves its writes in the cache of the partition. They
/// must not come over those that the next one has flushed to the disk.
#[test]
fn flushed_data_stays_when_a_killed_server_had_another_name_of_the_device() {
    let lab = Lab::new();
    let disk_file = disk_with_a_volume(&lab);
    File::options().write(true).open(&disk_file).unwrap().set_len(12 << 20).unwrap();
    let Some(disk) = LoopDevice::attach(&disk_file) else { return };
    let Some(part) = Partition::added(&disk) else { return };
    let over = LoopDevice::attach(&part.path()).unwrap();
    let over_name = over.path.to_str().unwrap();
    let disk_name = disk.path.to_str().unwrap();
    let place = LoopDevice::attach_with(&disk.path, &["--offset", "1M"]).unwrap();
    let place_name = place.path.to_str().unwrap();
    let file_name = disk_file.to_str().unwrap();
    let names =
        [&[disk_name, "--partition", "1"][..], &[place_name], &[file_name, "--partition", "1"]];
    for next in names {
        let first = lab.serve(&[over_name, "-d", "pass", "--socket", "s"]);
        assert_eq!(Nbd::open(&lab.path("s")).write(0, &[1; 4096]), 0);
        first.stop(Signal::KILL);
        let words = [next, &["-d", "pass", "--socket", "t"]].concat();
        let second = lab.serve(&words);
        let mut client = Nbd::open(&lab.path("t"));
        assert!(client.read(0, 4096) == [1; 4096], "{next:?}: the written data is not seen");
        assert_eq!([client.write(0, &[2; 4096]), client.flush()], [0, 0]);
        File::open(part.path()).unwrap().sync_all().unwrap();
        drop((client, second));
        let end = lab.ok(&[&["dump"], next, &["-d", "pass", "-o", "-"]].concat()).stdout;
        assert!(end[..4096] == [2; 4096], "{next:?}: the older write came after the flushed one");
    }
}

/// The first server writes through the cache of the loop device, which a reader keeps open.
#[test]
fn flushed_data_of_a_file_stays_when_a_killed_server_had_its_loop_device() {
    let lab = Lab::new();
    let file = lab.write("file", vec![0; 1 << 20]);
    let Some(device) = LoopDevice::attach(&file) else { return };
    let reader = File::open(&device.path).unwrap();
    lab.write("first", format!("0 2048 linear {} 0\n", device.path.display()));
    lab.write("second", format!("0 2048 linear {} 0\n", file.display()));
    let server = lab.serve(&["--table", "first", "--socket", "s"]);
    assert_eq!(Nbd::open(&lab.path("s")).write(0, &[1; 4096]), 0);
    server.stop(Signal::KILL);
    let _server = lab.serve(&["--table", "second", "--socket", "t"]);
    let mut client = Nbd::open(&lab.path("t"));
    assert!(client.read(0, 4096) == [1; 4096], "the written data is not seen");
    assert_eq!([client.write(0, &[2; 4096]), client.flush()], [0, 0]);
    reader.sync_all().unwrap();
    assert!(lab.read("file")[..4096] == [2; 4096], "the older write came after the flushed one");
}

#[test]
fn backup_of_a_header_on_a_device_is_on_stable_storage_or_fails() {
    let lab = Lab::new();
    let image = lab.volume("image");
    fs::create_dir(lab.path("full")).unwrap();
    let point = lab.path("full");
    let mut mount = Command::new("mount");
    let mount = mount.args(["-t", "tmpfs", "-o", "size=4k", "none"]).arg(&point);
    if !mount.status().is_ok_and(|ended| ended.success()) {
        return;
    }
    let _mounted = Mounted(&point);
    // A loop device takes a write of which a part fits.
    fs::write(point.join("full"), [1; 4096]).unwrap();
    let sparse = File::create(point.join("sparse")).unwrap();
    sparse.set_len(32 << 20).unwrap();
    let Some(device) = LoopDevice::attach(&point.join("sparse")) else { return };
    let device_name = device.path.to_str().unwrap();
    let words = ["header", "backup", image.to_str().unwrap(), "-o", device_name, "--force"];
    let said = lab.refused(&words, 1);
    assert!(said.contains(device_name), "{said}");
}

#[test]
fn output_to_a_loop_device_keeps_its_file_until_the_end() {
    let lab = Lab::new();
    let image = lab.volume("image");
    let Some(device) = LoopDevice::attach(&image) else { return };
    let output = Output::private(&device.path, true).create(&InUse::default()).unwrap();
    let load = ["load", "image", "-d", "pass", "-i", "pass", "--allow-short"];
    let said = lab.refused(&load, 5);
    assert!(said.contains("in use"), "{said}");
    drop(output);
    lab.ok(&load);
}

/// A loop device shares the cache of its file.
#[test]
fn reader_of_a_loop_device_leaves_the_cache_of_its_file() {
    let lab = Lab::new();
    let image = lab.volume("image");
    let Some(device) = LoopDevice::attach(&image) else { return };
    let cached_pages = || {
        let mut fincore = Command::new("fincore");
        let output = fincore.args(["--noheadings", "--output", "PAGES"]).arg(&image).output();
        text(&output.ok()?.stdout).trim().parse::<u64>().ok()
    };
    lab.read("image");
    File::open(&image).unwrap().sync_all().unwrap();
    let before = cached_pages();
    lab.ok(&["info", device.path.to_str().unwrap()]);
    assert_eq!(cached_pages(), before);
}

/// A disk with one partition, which has a volume.
fn disk_with_a_volume(lab: &Lab) -> PathBuf {
    let volume = fs::read(lab.volume("image")).unwrap();
    let start_sectors = 2048_u32;
    let sectors = u32::try_from(volume.len() / 512).unwrap();
    let mut disk = vec![0; 512 * start_sectors as usize];
    // The first entry of an MBR: the type of Linux, the place in sectors.
    disk[446 + 4] = 0x83;
    disk[446 + 8..][..4].copy_from_slice(&start_sectors.to_le_bytes());
    disk[446 + 12..][..4].copy_from_slice(&sectors.to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk.extend(volume);
    lab.write("disk", disk)
}

#[test]
fn loop_devices_over_a_partition_are_those_that_show_its_start() {
    let lab = Lab::new();
    let disk = disk_with_a_volume(&lab);
    let label = ["header", "label", "disk", "--partition", "1", "--label", "home"];
    lab.ok(&label);
    let Some(table) = LoopDevice::attach_with(&disk, &["--sizelimit", "1M"]) else { return };
    let table_lock = lock_of_cryptsetup(&table);
    lab.ok(&label);
    let volume = LoopDevice::attach_with(&disk, &["--offset", "1M"]).unwrap();
    let volume_lock = lock_of_cryptsetup(&volume);
    lab.refused(&label, 5);
    drop((table_lock, volume_lock));
    // Only root may use cryptsetup's folder of locks.
    let nobody = 65_534;
    fs::set_permissions(lab.path("."), Permissions::from_mode(0o755)).unwrap();
    chown(&disk, Some(nobody), Some(nobody)).unwrap();
    let warnings = || {
        let mut command = lab.blockyard(&label);
        let output = command.uid(nobody).gid(nobody).output().unwrap();
        let said = text(&output.stderr);
        said.matches("no lock of the loop devices over this file").count()
    };
    assert_eq!(warnings(), 1);
    drop(volume);
    assert_eq!(warnings(), 0);
}

/// A header that begins within a page of the cache, and one within a large folio.
#[test]
fn header_at_an_odd_place_is_read_anew_after_a_change_under_another_name() {
    let lab = Lab::new();
    let volume = fs::read(lab.volume("image")).unwrap();
    for start_sectors in [63, 42_624] {
        let disk = lab.write("disk", [vec![0; start_sectors * 512], volume.clone()].concat());
        let Some(lower) = LoopDevice::attach(&disk) else { return };
        let start_bytes = (start_sectors * 512).to_string();
        let upper = LoopDevice::attach_with(&lower.path, &["--offset", &start_bytes]).unwrap();
        let info = ["info", upper.path.to_str().unwrap()];
        lab.ok(&info);
        for label in ["one", "two"] {
            fs::read(&lower.path).unwrap();
            let start = start_sectors.to_string();
            lab.ok(&["header", "label", "disk", "--offset", &start, "--label", label]);
            let output = lab.ok(&info);
            let said = text(&output.stdout) + &text(&output.stderr);
            assert!(said.contains(label) && !said.contains("warning"), "{said}");
        }
    }
}

/// A mount, until the value is dropped.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

/// The loop device was made by one node of a device, whose name is another node now.
#[test]
fn device_under_a_loop_device_is_known_by_each_of_its_nodes() {
    let lab = Lab::new();
    let image = lab.volume("image");
    let Some(lower) = LoopDevice::attach(&image) else { return };
    let number = fs::metadata(&lower.path).unwrap().rdev();
    let node = |name: &str| {
        let path = lab.path(name);
        let numbers = [major(number), minor(number)].map(|number| number.to_string());
        let made = Command::new("mknod").arg(&path).arg("b").args(numbers).status();
        assert!(made.unwrap().success());
        path
    };
    let first = node("node");
    let upper = LoopDevice::attach(&first).unwrap();
    let mount = Command::new("mount").arg("--bind").args([&node("other"), &first]).status();
    assert!(mount.unwrap().success());
    let _mounted = Mounted(&first);
    let disk = upper.path.to_str().unwrap();
    let output = lab.ok(&["header", "label", disk, "--label", "home"]);
    assert_eq!(text(&output.stderr).matches("warning").count(), 0, "{}", text(&output.stderr));
    let _server = lab.serve(&["image", "-d", "pass", "--socket", "s"]);
    lab.refused(&["load", disk, "-d", "pass", "-i", "pass", "--allow-short"], 5);
}
