//! File systems that are damaged, or made to do harm: a copy ends, with an error or without, and
//! never writes outside of its target.
//!
//! `BLOCKYARD_SOAK` changes thousands of images, with a new seed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use blockyard::files::{CopyOptions, Kind};
use blockyard::output::InUse;
use blockyard::{Error, Settings, Volume};

/// A folder with an image.
struct Disk {
    dir: tempfile::TempDir,
    image: Vec<u8>,
}

impl Disk {
    /// ext2 without checksums, which would refuse every change; `None` without the program.
    fn ext2(kind: &str, tree: &[(&str, Item)]) -> Option<Self> {
        Self::with_size(kind, "1M", tree)
    }

    fn with_size(kind: &str, size: &str, tree: &[(&str, Item)]) -> Option<Self> {
        let disk = Self::with_tree(tree);
        let features = "^metadata_csum,^64bit,^resize_inode,^dir_index";
        let words =
            ["-q", "-F", "-N", "64", "-t", kind, "-O", features, "-d", "tree", "image", size];
        disk.made("mke2fs", &words)
    }

    /// FAT of this width, in clusters of 512 bytes.
    fn fat(bits: &str, size_kib: &str, tree: &[(&str, Item)]) -> Option<Self> {
        let disk = Self::with_tree(tree);
        let words = ["-F", bits, "-s", "1", "-C", "image", size_kib];
        let mut disk = disk.made("mkfs.fat", &words)?;
        let copied = disk.sh("mcopy -s -i image tree/* ::/");
        copied.then(|| disk.image = fs::read(disk.path("image")).unwrap())?;
        Some(disk)
    }

    /// ISO 9660 with Rock Ridge and Joliet.
    fn iso(tree: &[(&str, Item)]) -> Option<Self> {
        let disk = Self::with_tree(tree);
        disk.made("genisoimage", &["-quiet", "-R", "-J", "-o", "image", "tree"])
    }

    fn with_tree(tree: &[(&str, Item)]) -> Self {
        let disk = Self { dir: tempfile::tempdir().unwrap(), image: Vec::new() };
        fs::create_dir(disk.path("tree")).unwrap();
        for (name, item) in tree {
            let path = disk.path("tree").join(name);
            match item {
                File(len) => fs::write(path, vec![7; *len]).unwrap(),
                Folder => fs::create_dir(path).unwrap(),
                Link(to) => std::os::unix::fs::symlink(to, path).unwrap(),
            }
        }
        disk
    }

    fn made(mut self, program: &str, words: &[&str]) -> Option<Self> {
        if !self.sh(&format!("{program} {}", words.join(" "))) {
            println!("skipped: {program} is missing");
            return None;
        }
        self.image = fs::read(self.path("image")).unwrap();
        Some(self)
    }

    fn sh(&self, script: &str) -> bool {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(self.dir.path());
        command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.status().unwrap().success()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Places of these bytes.
    fn places(&self, bytes: &[u8]) -> Vec<usize> {
        let places = self.image.windows(bytes.len()).enumerate();
        let places: Vec<usize> =
            places.filter(|(_, window)| *window == bytes).map(|(place, _)| place).collect();
        assert!(!places.is_empty(), "{}", String::from_utf8_lossy(bytes));
        places
    }

    fn replace(&mut self, bytes: &[u8], by: &[u8]) {
        for place in self.places(bytes) {
            self.image[place..place + by.len()].copy_from_slice(by);
        }
    }

    /// Lists and copies all of it to a new folder `out/copy`.
    fn copy(&self, image: &[u8]) -> Result<(), Error> {
        self.copy_with(image, false)
    }

    fn copy_with(&self, image: &[u8], replace: bool) -> Result<(), Error> {
        let path = self.path("changed");
        fs::write(&path, image).unwrap();
        let _ = fs::remove_dir_all(self.path("out"));
        fs::create_dir(self.path("out")).unwrap();
        let settings = Settings { read_only: true, ..Settings::default() };
        let volume = Volume::options().raw().settings(settings).open(&path)?;
        let mut files = volume.files(None)?;
        for entry in files.list(Path::new("/"))?.entries {
            if entry.kind == Kind::Link {
                let _ = files.target(&Path::new("/").join(&entry.name));
            }
        }
        let options = CopyOptions { recursive: true, replace };
        let target = self.path("out/copy");
        files.copy(Path::new("/"), &target, &options, &InUse::default(), &mut |_| ())
    }
}

enum Item {
    File(usize),
    Folder,
    Link(&'static str),
}

use Item::{File, Folder, Link};

#[test]
fn folder_with_the_name_of_a_link_is_not_written_through_the_link() {
    let tree = [
        ("same-name-1", Link("../../outside")),
        ("same-name-2", Folder),
        ("same-name-2/f", File(9)),
    ];
    let Some(mut disk) = Disk::ext2("ext2", &tree) else { return };
    fs::create_dir(disk.path("outside")).unwrap();
    disk.copy(&disk.image).unwrap();
    disk.replace(b"same-name-2", b"same-name-1");
    for replace in [false, true] {
        let refused = disk.copy_with(&disk.image, replace).unwrap_err().to_string();
        assert!(refused.contains("same-name-1: exists already"), "{refused}");
        assert_eq!(fs::read_dir(disk.path("outside")).unwrap().count(), 0);
    }
}

#[test]
fn file_with_the_name_of_a_link_does_not_replace_its_target() {
    let tree = [("same-name-1", Link("../../victim")), ("same-name-2", File(9))];
    let Some(mut disk) = Disk::ext2("ext2", &tree) else { return };
    fs::write(disk.path("victim"), "kept").unwrap();
    disk.replace(b"same-name-2", b"same-name-1");
    let refused = disk.copy(&disk.image).unwrap_err().to_string();
    assert!(refused.contains("same-name-1: exists already"), "{refused}");
    assert_eq!(fs::read(disk.path("victim")).unwrap(), b"kept");
    // The crate may take the link for the file.
    let _ = disk.copy_with(&disk.image, true);
    assert_eq!(fs::read(disk.path("victim")).unwrap(), b"kept");
}

#[test]
fn name_with_a_slash_is_refused() {
    let Some(mut disk) = Disk::ext2("ext2", &[("..x..x..xfile", File(9))]) else { return };
    disk.replace(b"..x..x..xfile", b"../../../file");
    let refused = disk.copy(&disk.image).unwrap_err().to_string();
    assert!(refused.contains("which is no name") || refused.contains("cannot read"), "{refused}");
}

/// The crate for FAT returns any name.
#[test]
fn name_of_fat_with_slashes_is_refused() {
    let Some(mut disk) = Disk::fat("12", "1024", &[("aaQ..Q..Qa long name", File(9))]) else {
        return;
    };
    disk.replace(b"Q\0", b"/\0");
    let refused = disk.copy(&disk.image).unwrap_err().to_string();
    assert!(refused.contains("which is no name"), "{refused}");
}

#[test]
fn folder_that_holds_itself_is_an_error_of_its_depth() {
    let tree = [("loop-folder", Folder), ("loop-folder/file", File(9))];
    let Some(mut disk) = Disk::ext2("ext2", &tree) else { return };
    for place in disk.places(b"loop-folder") {
        // The number of the inode is eight bytes in front of the name; 2 is the root.
        disk.image[place - 8..place - 4].copy_from_slice(&2_u32.to_le_bytes());
    }
    let refused = disk.copy(&disk.image).unwrap_err().to_string();
    assert!(refused.contains("nested in each other"), "{refused}");
}

/// Each folder holds the next one twice: 2^13 paths, on a disk with room for 8192 entries.
#[test]
fn folders_with_more_paths_than_room_are_an_error() {
    let names: Vec<String> = (0..13).map(|n| format!("pair-{n:02}")).collect();
    let tree: Vec<(String, Item)> = names
        .iter()
        .flat_map(|name| ["-a", "-b"].map(|end| (format!("{name}{end}"), Folder)))
        .collect();
    let tree: Vec<(&str, Item)> =
        tree.into_iter().map(|(name, item)| (&*name.leak(), item)).collect();
    let Some(mut disk) = Disk::with_size("ext2", "96K", &tree) else { return };
    // The root's entries, moved into each other: folder N has two entries for folder N + 1.
    let inode = |disk: &Disk, name: &str| -> u32 {
        let place = disk.places(name.as_bytes())[0];
        u32::from_le_bytes(disk.image[place - 8..place - 4].try_into().unwrap())
    };
    let block_of = |disk: &Disk, name: &str| {
        // The block of a folder begins with its own `.`.
        let start = [&inode(disk, name).to_le_bytes()[..], &[12, 0, 1, 2, b'.', 0, 0, 0]].concat();
        disk.places(&start)[0]
    };
    for pair in names.windows(2) {
        let next = inode(&disk, &format!("{}-a", pair[1]));
        // Behind `.` and `..`, which reaches to the end of the block.
        let place = block_of(&disk, &format!("{}-a", pair[0])) + 24;
        disk.image[place - 8..place - 6].copy_from_slice(&12_u16.to_le_bytes());
        let entry = |len: u16, name: u8| {
            let head = [&next.to_le_bytes()[..], &len.to_le_bytes(), &[1, 2, name, 0, 0, 0]];
            head.concat()
        };
        disk.image[place..place + 12].copy_from_slice(&entry(12, b'a'));
        disk.image[place + 12..place + 24].copy_from_slice(&entry(1024 - 36, b'b'));
    }
    let refused = disk.copy(&disk.image).unwrap_err().to_string();
    assert!(refused.contains("more entries than the volume has room for"), "{refused}");
}

/// xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// Changes a few bytes of the metadata in each round.
fn changed_images_are_read(disk: &Disk) {
    // A large image takes its time.
    let few = if disk.image.len() > 8 << 20 { 15 } else { 60 };
    let (rounds, seed) = match std::env::var_os("BLOCKYARD_SOAK") {
        None => (few, 0x5eed),
        Some(_) => {
            let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
            (20_000, now.as_nanos() as u64 | 1)
        }
    };
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    // Places that are not zero or the content of files.
    let used: Vec<usize> =
        (0..disk.image.len()).filter(|place| !matches!(disk.image[*place], 0 | 7)).collect();
    let mut sound = 0;
    let mut damaged = 0;
    for round in 0..rounds {
        let mut image = disk.image.clone();
        for _ in 0..1 + random.below(4) {
            let place = used[random.below(used.len())] + random.below(4);
            let at = place.min(image.len() - 1);
            image[at] = [0, 1, 2, 0x7f, 0xff, random.below(256) as u8][random.below(6)];
        }
        match disk.copy(&image) {
            Ok(()) => sound += 1,
            Err(Error::Defect { .. }) => panic!("round {round} of seed {seed:#x}: a panic"),
            Err(_) => damaged += 1,
        }
    }
    assert!(sound > 0 && damaged > 0, "{sound} images were sound, {damaged} were damaged");
}

fn mixed_tree() -> Vec<(&'static str, Item)> {
    vec![
        ("folder", Folder),
        ("folder/deeper", Folder),
        ("folder/deeper/a file with a long name", File(3000)),
        ("folder/short", File(0)),
        ("large", File(200_000)),
    ]
}

#[test]
fn changed_ext_images_are_errors_or_copies() {
    for kind in ["ext2", "ext4"] {
        let mut tree = mixed_tree();
        tree.push(("link", Link("folder/short")));
        let target = "a/target/of/more/than/sixty/bytes/which/needs/a/block/of/its/own";
        tree.push(("long-link", Link(target)));
        let Some(disk) = Disk::ext2(kind, &tree) else { return };
        disk.copy(&disk.image).unwrap();
        changed_images_are_read(&disk);
    }
}

#[test]
fn changed_fat_images_are_errors_or_copies() {
    // The number of clusters decides the width of an entry: from 4085 and from 65,525 on.
    for (bits, size_kib) in [("12", "1024"), ("16", "4096"), ("32", "34000")] {
        let Some(disk) = Disk::fat(bits, size_kib, &mixed_tree()) else { return };
        disk.copy(&disk.image).unwrap();
        changed_images_are_read(&disk);
    }
}

#[test]
fn changed_iso_images_are_errors_or_copies() {
    let mut tree = mixed_tree();
    tree.push(("link", Link("folder/short")));
    let Some(disk) = Disk::iso(&tree) else { return };
    disk.copy(&disk.image).unwrap();
    changed_images_are_read(&disk);
}
