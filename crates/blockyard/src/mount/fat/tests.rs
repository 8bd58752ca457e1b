//! Random operations beside a model in memory, on disks that become full; `fsck.fat` finds nothing
//! to mend afterwards, and a new mount has the same files.
//!
//! A failure prints its seed. `BLOCKYARD_SOAK` makes a hundred times the operations, with a new
//! seed.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Arc, Mutex};

use super::nodes::{NewTimes, Nodes, ROOT};
use super::*;

/// A disk in memory.
#[derive(Clone)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Storage for Memory {
    fn len_bytes(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }

    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let offset = offset as usize;
        buffer.copy_from_slice(&self.0.lock().unwrap()[offset..offset + buffer.len()]);
        Ok(())
    }

    fn write_at(&mut self, data: &[u8], offset: u64) -> io::Result<()> {
        let offset = offset as usize;
        self.0.lock().unwrap()[offset..offset + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An empty file system; `None` without the program.
fn formatted(bits: &str, cluster_sectors: &str, size_kib: &str) -> Option<Memory> {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let mut command = tool("mkfs.fat");
    command.args(["-F", bits, "-s", cluster_sectors, "-C"]).arg(&image).arg(size_kib);
    let Ok(output) = command.output() else {
        println!("skipped: mkfs.fat is missing");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(Memory(Arc::new(Mutex::new(std::fs::read(image).unwrap()))))
}

fn tool(program: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

fn mounted(disk: &Memory) -> Nodes {
    Nodes::new(Fat::open(Disk::new(Box::new(disk.clone()))).unwrap(), false).unwrap()
}

/// The report of `fsck.fat`, which must find nothing.
fn check(disk: &Memory) {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::write(&image, &*disk.0.lock().unwrap()).unwrap();
    let output = tool("fsck.fat").arg("-n").arg(&image).output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<_> = report.lines().collect();
    // The version, and the numbers of files and clusters.
    assert!(output.status.success() && lines.len() == 2, "{report}");
}

/// A file's content, or a folder.
type Model = BTreeMap<String, Option<Vec<u8>>>;

struct World {
    nodes: Nodes,
    model: Model,
    random: u64,
    refused: u64,
}

const NAMES: [&str; 7] = [
    "a",
    "b.txt",
    "UPPER.TXT",
    "Mixed Case and spaces.data",
    "umlaut-äöü.ß",
    "two.dots.here",
    "a name that is so long that its folder needs many entries for it, and one more for luck, too",
];

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

fn name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

impl World {
    fn below(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % limit as u64) as usize
    }

    /// A path of the model, or nothing.
    fn some(&mut self, is_folder: bool) -> Option<String> {
        let fit = |(_, item): &(&String, &Option<Vec<u8>>)| item.is_none() == is_folder;
        let paths: Vec<String> =
            self.model.iter().filter(fit).map(|(path, _)| path.clone()).collect();
        if paths.is_empty() { None } else { Some(paths[self.below(paths.len())].clone()) }
    }

    /// A path in a folder, which may exist.
    fn any_path(&mut self) -> String {
        let folder =
            if self.below(3) == 0 { String::new() } else { self.some(true).unwrap_or_default() };
        // Folders are not deep.
        let folder = if folder.matches('/').count() > 3 { String::new() } else { folder };
        format!("{folder}/{}", NAMES[self.below(NAMES.len())])
    }

    fn number(&mut self, path: &str) -> u64 {
        let mut number = ROOT;
        for name in path.split('/').skip(1) {
            number = self.nodes.lookup(number, name).unwrap().number;
        }
        number
    }

    /// Counts a refusal because of space; any other is a failure.
    fn done(&mut self, outcome: io::Result<()>, what: &str) -> bool {
        match outcome {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{what}: {error}");
                self.refused += 1;
                false
            }
        }
    }

    fn step(&mut self) {
        match self.below(12) {
            0 | 1 => self.create(),
            2..=4 => self.write(),
            5 => self.resize(),
            6 => self.remove(),
            7 | 8 => self.rename(),
            9 => self.read(),
            10 => {
                if let Some(path) = self.some(false) {
                    let number = self.number(&path);
                    let times = NewTimes { modified: Some(1_600_000_000), accessed: None };
                    self.nodes.set_times(number, times).unwrap();
                    assert_eq!(self.nodes.attributes(number).unwrap().modified, 1_600_000_000);
                }
            }
            _ => {
                let outcome = self.nodes.sync(ROOT);
                assert!(outcome.is_ok(), "acknowledged writes find their room: {outcome:?}");
            }
        }
        self.nodes.commit().unwrap();
    }

    fn create(&mut self) {
        let path = self.any_path();
        let is_folder = self.below(4) == 0;
        let folder = self.number(parent(&path));
        let created = self.nodes.create(folder, name(&path), is_folder);
        if self.model.contains_key(&path) {
            assert_eq!(created.unwrap_err().kind(), io::ErrorKind::AlreadyExists, "{path}");
        } else if self.done(created.map(|_| ()), &path) {
            self.model.insert(path, (!is_folder).then(Vec::new));
        }
    }

    fn write(&mut self) {
        let Some(path) = self.some(false) else { return };
        let len = self.model[&path].as_ref().unwrap().len();
        let offset = match self.below(4) {
            0 => self.below(len + 1),
            1 => len + self.below(9000),
            _ => len,
        };
        let fill = self.below(256) as u8;
        let count = 1 + if self.below(8) == 0 { self.below(200_000) } else { self.below(6000) };
        let data: Vec<u8> = (0..count).map(|at| fill.wrapping_add(at as u8)).collect();
        let number = self.number(&path);
        let written = self.nodes.write(number, &data, offset as u64);
        if self.done(written, &path) {
            let content = self.model.get_mut(&path).unwrap().as_mut().unwrap();
            content.resize(content.len().max(offset + count), 0);
            content[offset..offset + count].copy_from_slice(&data);
        }
    }

    fn resize(&mut self) {
        let Some(path) = self.some(false) else { return };
        let len = self.model[&path].as_ref().unwrap().len();
        let new = if self.below(4) == 0 { len + self.below(20_000) } else { self.below(len + 1) };
        let number = self.number(&path);
        let resized = self.nodes.resize(number, new as u64);
        if self.done(resized, &path) {
            self.model.get_mut(&path).unwrap().as_mut().unwrap().resize(new, 0);
        }
    }

    fn remove(&mut self) {
        let is_folder = self.below(3) == 0;
        let Some(path) = self.some(is_folder) else { return };
        let folder = self.number(parent(&path));
        let removed = self.nodes.unlink(folder, name(&path), is_folder);
        let inner = format!("{path}/");
        if self.model.keys().any(|other| other.starts_with(&inner)) {
            assert_eq!(removed.unwrap_err().kind(), io::ErrorKind::DirectoryNotEmpty, "{path}");
        } else {
            removed.unwrap();
            self.model.remove(&path);
        }
    }

    fn rename(&mut self) {
        let is_folder = self.below(3) == 0;
        let Some(from) = self.some(is_folder) else { return };
        let to = self.any_path();
        let inner = |path: &str| format!("{path}/");
        // The kernel refuses these itself.
        if from == to || to.starts_with(&inner(&from)) || from.starts_with(&inner(&to)) {
            return;
        }
        let old = self.number(parent(&from));
        let new = self.number(parent(&to));
        let moved = self.nodes.rename((old, name(&from)), (new, name(&to)), true);
        let error = match self.model.get(&to).map(Option::is_none) {
            Some(true) if !is_folder => Some(io::ErrorKind::IsADirectory),
            Some(false) if is_folder => Some(io::ErrorKind::NotADirectory),
            Some(true) if self.model.keys().any(|path| path.starts_with(&inner(&to))) => {
                Some(io::ErrorKind::DirectoryNotEmpty)
            }
            _ => None,
        };
        if let Some(error) = error {
            assert_eq!(moved.unwrap_err().kind(), error, "{from} to {to}");
        } else if self.done(moved, &from) {
            self.model.remove(&to);
            let below: Vec<String> = self
                .model
                .keys()
                .filter(|path| **path == from || path.starts_with(&inner(&from)))
                .cloned()
                .collect();
            for path in below {
                let item = self.model.remove(&path).unwrap();
                self.model.insert(format!("{to}{}", &path[from.len()..]), item);
            }
        }
    }

    fn read(&mut self) {
        let Some(path) = self.some(false) else { return };
        let content = self.model[&path].clone().unwrap();
        let offset = self.below(content.len() + 10);
        let count = self.below(50_000);
        let number = self.number(&path);
        let read = self.nodes.read(number, offset as u64, count).unwrap();
        let end = (offset + count).min(content.len());
        assert!(read == content[offset.min(end)..end], "{path} at {offset}");
    }
}

/// All files of a mount.
fn tree(nodes: &mut Nodes, folder: u64, path: &str, model: &mut Model) {
    for listed in nodes.list(folder).unwrap() {
        let found = nodes.lookup(folder, &listed.name).unwrap();
        let path = format!("{path}/{}", listed.name);
        if found.is_folder {
            model.insert(path.clone(), None);
            tree(nodes, found.number, &path, model);
        } else {
            let content = nodes.read(found.number, 0, found.len as usize).unwrap();
            model.insert(path, Some(content));
        }
    }
}

fn campaign(bits: &str, cluster_sectors: &str, size_kib: &str, rounds: usize) {
    let Some(disk) = formatted(bits, cluster_sectors, size_kib) else { return };
    let soak = std::env::var_os("BLOCKYARD_SOAK").is_some();
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let seed = if soak { now.as_nanos() as u64 | 1 } else { 0x5eed };
    println!("FAT{bits}, seed {seed:#x}");
    let mut world = World { nodes: mounted(&disk), model: Model::new(), random: seed, refused: 0 };
    let rounds = if soak { rounds * 100 } else { rounds };
    for round in 0..rounds {
        world.step();
        if round % (rounds / 4) == rounds / 4 - 1 {
            world.nodes.finish().unwrap();
            check(&disk);
            world.nodes = mounted(&disk);
            let mut found = Model::new();
            tree(&mut world.nodes, ROOT, "", &mut found);
            assert_eq!(
                found.keys().collect::<Vec<_>>(),
                world.model.keys().collect::<Vec<_>>(),
                "round {round}"
            );
            assert!(found == world.model, "round {round}: a content");
        }
    }
    println!("{} operations found no room", world.refused);
}

#[test]
fn random_operations_on_fat12_leave_a_sound_disk() {
    campaign("12", "1", "200", 4000);
}

#[test]
fn random_operations_on_fat16_leave_a_sound_disk() {
    campaign("16", "1", "2200", 4000);
}

#[test]
fn random_operations_on_fat32_leave_a_sound_disk() {
    campaign("32", "1", "34000", 4000);
}

/// A program may go on using a file that another one removes or replaces.
#[test]
fn removed_file_that_is_open_is_read_until_it_is_closed() {
    let Some(disk) = formatted("16", "4", "16384") else { return };
    let mut nodes = mounted(&disk);
    let file = nodes.create(ROOT, "kept.txt", false).unwrap().number;
    nodes.open(file).unwrap();
    nodes.write(file, b"first", 0).unwrap();
    let other = nodes.create(ROOT, "other.txt", false).unwrap().number;
    nodes.write(other, b"second", 0).unwrap();
    nodes.rename((ROOT, "other.txt"), (ROOT, "kept.txt"), true).unwrap();
    assert_eq!(nodes.read(file, 0, 10).unwrap(), b"first");
    nodes.write(file, b" and more", 5).unwrap();
    assert_eq!(nodes.read(file, 0, 20).unwrap(), b"first and more");
    let replaced = nodes.lookup(ROOT, "KEPT.TXT").unwrap().number;
    assert_eq!((replaced, nodes.read(other, 0, 10).unwrap()), (other, b"second".to_vec()));
    nodes.open(other).unwrap();
    nodes.unlink(ROOT, "kept.txt", false).unwrap();
    assert_eq!(nodes.read(other, 0, 10).unwrap(), b"second");
    nodes.close(other).unwrap();
    nodes.close(file).unwrap();
    assert_eq!(nodes.list(ROOT).unwrap(), []);
    nodes.finish().unwrap();
    check(&disk);
}

/// The content of a file in a new mount.
fn content(disk: &Memory, folder: &str, name: &str) -> Vec<u8> {
    let mut nodes = mounted(disk);
    let folder = nodes.lookup(ROOT, folder).unwrap().number;
    let found = nodes.lookup(folder, name).unwrap();
    nodes.read(found.number, 0, found.len as usize).unwrap()
}

/// The kernel forgets files and folders in any order.
#[test]
fn forgotten_file_keeps_its_bytes_and_its_only_node() {
    let Some(disk) = formatted("16", "4", "16384") else { return };
    let mut nodes = mounted(&disk);
    let mut folder = nodes.create(ROOT, "folder", true).unwrap().number;
    for forgets_folder_first in [false, true] {
        let name = format!("file-{forgets_folder_first}");
        let file = nodes.create(folder, &name, false).unwrap().number;
        nodes.resize(file, 300_000).unwrap();
        nodes.commit().unwrap();
        assert!(content(&disk, "folder", &name) == vec![0; 300_000], "no close follows");
        nodes.write(file, b"forgotten", 300_000).unwrap();
        let order = if forgets_folder_first { [folder, file] } else { [file, folder] };
        for number in order {
            nodes.forget(number, u64::MAX);
        }
        folder = nodes.lookup(ROOT, "folder").unwrap().number;
        let file = nodes.lookup(folder, &name).unwrap();
        assert_eq!(file.len, 300_009);
        nodes.resize(file.number, 0).unwrap();
        nodes.write(file.number, b"precious", 0).unwrap();
        nodes.sync(ROOT).unwrap();
        assert_eq!(content(&disk, "folder", &name), b"precious");
    }
    nodes.finish().unwrap();
    check(&disk);
}

/// A folder is forgotten while a file in it is known, and the file keeps its node.
#[test]
fn folder_of_a_known_file_keeps_its_number() {
    let Some(disk) = formatted("16", "4", "16384") else { return };
    let mut nodes = mounted(&disk);
    let folder = nodes.create(ROOT, "folder", true).unwrap().number;
    let file = nodes.create(folder, "file", false).unwrap().number;
    nodes.write(file, b"waiting", 0).unwrap();
    nodes.forget(folder, 1);
    assert_eq!(nodes.lookup(ROOT, "folder").unwrap().number, folder);
    assert_eq!(nodes.lookup(folder, "file").unwrap().number, file);
    nodes.forget(folder, 1);
    nodes.forget(file, 2);
    nodes.commit().unwrap();
    let other = nodes.lookup(ROOT, "folder").unwrap().number;
    assert_ne!(other, folder, "the last known file is forgotten, and its folder with it");
    assert_eq!(content(&disk, "folder", "file"), b"waiting");
}

/// The chain of the file is damaged, so that nothing can be appended to it.
#[test]
fn failed_write_is_the_error_of_its_file_and_of_the_end_only() {
    let Some(disk) = formatted("16", "4", "16384") else { return };
    let mut nodes = mounted(&disk);
    let file = nodes.create(ROOT, "damaged", false).unwrap().number;
    nodes.write(file, &[1; 5000], 0).unwrap();
    nodes.finish().unwrap();
    {
        // The first file starts at cluster 2, whose entry is the third of the table.
        let mut bytes = disk.0.lock().unwrap();
        let table = 512 * usize::from(u16::from_le_bytes([bytes[14], bytes[15]]));
        bytes[table + 4..table + 6].copy_from_slice(&[0, 0]);
    }
    for is_removed in [false, true] {
        let mut nodes = mounted(&disk);
        let file = nodes.lookup(ROOT, "damaged").unwrap().number;
        nodes.open(file).unwrap();
        nodes.write(file, b"lost", 5000).unwrap();
        let other = nodes.create(ROOT, "other", false);
        let other = other.or_else(|_| nodes.lookup(ROOT, "other")).unwrap().number;
        nodes.sync(other).unwrap();
        for _ in 0..2 {
            assert_eq!(nodes.sync(file).unwrap_err().raw_os_error(), Some(5), "fsync");
            assert_eq!(nodes.settle(file).unwrap_err().raw_os_error(), Some(5), "close");
        }
        assert!(nodes.write(file, b"more", 5004).is_err());
        assert_eq!(nodes.read(file, 5000, 10).unwrap(), b"lost", "the bytes stay");
        assert!(nodes.close(file).is_err());
        nodes.forget(file, 1);
        if is_removed {
            nodes.unlink(ROOT, "damaged", false).unwrap();
            nodes.finish().unwrap();
        } else {
            let error = nodes.finish().unwrap_err().to_string();
            assert!(error.contains("\"damaged\""), "{error}");
        }
    }
}

#[test]
fn disk_is_marked_while_it_is_written_and_not_by_reading() {
    let Some(disk) = formatted("32", "1", "34000") else { return };
    let mark = |disk: &Memory| disk.0.lock().unwrap()[65] & 1;
    let before = disk.0.lock().unwrap().clone();
    let mut nodes = mounted(&disk);
    nodes.list(ROOT).unwrap();
    nodes.space().unwrap();
    nodes.finish().unwrap();
    assert!(*disk.0.lock().unwrap() == before, "reading changes nothing");
    let mut nodes = mounted(&disk);
    nodes.create(ROOT, "file", false).unwrap();
    assert_eq!(mark(&disk), 1);
    nodes.finish().unwrap();
    assert_eq!(mark(&disk), 0);
    assert!(nodes.create(ROOT, "later", false).is_err(), "the mount has ended");
    // A mount that did not end in order.
    disk.0.lock().unwrap()[65] |= 1;
    let mut nodes = mounted(&disk);
    nodes.create(ROOT, "other", false).unwrap();
    nodes.finish().unwrap();
    assert_eq!(mark(&disk), 1, "fsck.fat has to see it");
}

#[test]
fn names_that_windows_cannot_use_are_refused() {
    let Some(disk) = formatted("12", "1", "600") else { return };
    let mut nodes = mounted(&disk);
    for name in ["a:b", "a?", "dot.", "space ", "con*", "a\\b", "\u{1}"] {
        let refused = nodes.create(ROOT, name, false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{name}");
    }
    nodes.create(ROOT, "Name", false).unwrap();
    let twice = nodes.create(ROOT, "NAME", false).unwrap_err();
    assert_eq!(twice.kind(), io::ErrorKind::AlreadyExists);
    let file = nodes.lookup(ROOT, "name").unwrap().number;
    let times = NewTimes { modified: Some(1_600_000_000), accessed: None };
    nodes.set_times(file, times).unwrap();
    nodes.rename((ROOT, "Name"), (ROOT, "nAME"), true).unwrap();
    assert_eq!(nodes.attributes(file).unwrap().modified, 1_600_000_000);
    assert_eq!(nodes.list(ROOT).unwrap()[0].name, "nAME");
}
