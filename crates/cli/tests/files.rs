//! `blockyard ls` and `cp`: files out of a volume, without FUSE.

mod lab;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;

use lab::{Lab, SMALL, noise, text};

const IMAGE_BYTES: u64 = 16 << 20;
/// Start of the plaintext in the image.
const HEADER_BYTES: u64 = 512 << 10;

/// A volume `vol` with the file system that a script makes in the file `plain`; `None` without the
/// programs.
fn volume(script: &str) -> Option<Lab> {
    let lab = Lab::new();
    fs::create_dir_all(lab.path("tree/etc/deep")).unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(lab.path("tree").join(name), bytes).unwrap();
    write("etc/passwd", b"root:x:0:0\n");
    write("data", &noise(300_000, 1));
    let mode = |mode| fs::Permissions::from_mode(mode);
    fs::set_permissions(lab.path("tree/etc"), mode(0o750)).unwrap();
    fs::set_permissions(lab.path("tree/data"), mode(0o4640)).unwrap();
    let time = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH + TIME);
    fs::File::open(lab.path("tree/data")).unwrap().set_times(time).unwrap();
    let plain = fs::File::create(lab.path("plain")).unwrap();
    plain.set_len(IMAGE_BYTES - HEADER_BYTES).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("sh");
    command.args(["-ec", script]).current_dir(lab.path(""));
    let output = command.env("PATH", format!("{path}:/usr/sbin:/sbin")).output().unwrap();
    if output.status.code() == Some(127) {
        println!("skipped: {}", text(&output.stderr));
        return None;
    }
    assert!(output.status.success(), "{}", text(&output.stderr));
    let size = IMAGE_BYTES.to_string();
    let mut words = vec!["format", "vol", "--size", &size, "--key-file", "pass"];
    words.extend(SMALL);
    lab.ok(&words);
    lab.ok(&["load", "vol", "-d", "pass", "-i", "plain"]);
    fs::create_dir(lab.path("out")).unwrap();
    Some(lab)
}

/// 2020-02-02 02:02:02.
const TIME: std::time::Duration = std::time::Duration::from_secs(1_580_608_922);

fn ext(kind: &str) -> Option<Lab> {
    let tree = "cd tree; ln -s passwd etc/link; ln -s /etc/passwd etc/absolute; mkfifo pipe; \
                ln -s ../../../etc/nowhere etc/dangling; truncate -s 200K sparse; \
                echo end >> sparse";
    volume(&format!("({tree}); mke2fs -q -F -t {kind} -d tree plain"))
}

#[test]
fn files_are_listed_as_text_and_as_json() {
    let Some(lab) = ext("ext4") else { return };
    let ls = |words: &[&str]| text(&lab.ok(&[&["ls", "-d", "pass"][..], words].concat()).stdout);
    assert_eq!(ls(&["vol"]), "data\netc\nlost+found\npipe\nsparse\n");
    assert_eq!(ls(&["vol:/etc"]), "absolute\ndangling\ndeep\nlink\npasswd\n");
    assert_eq!(ls(&["vol:/etc/link"]), "link\n");
    let long = ls(&["-l", "vol:/"]);
    let data = long.lines().next().unwrap();
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    let wanted = format!("-rwSr----- {uid:>5} {gid:>5} 300000 2020-02-02 02:02 data");
    assert_eq!(data, wanted);
    assert!(ls(&["-l", "vol:/etc"]).contains(" link -> passwd\n"));
    let json: serde_json::Value = serde_json::from_str(&ls(&["--json", "vol:/data"])).unwrap();
    assert_eq!(json[0]["mode"], "4640");
    assert_eq!(json[0]["size"], 300_000);
    assert_eq!(json[0]["type"], "file");
    assert_eq!(json[0]["modified"], "2020-02-02T02:02:02Z");
}

#[test]
fn tree_is_copied_with_its_permissions_times_links_and_holes() {
    for kind in ["ext2", "ext3", "ext4"] {
        let Some(lab) = ext(kind) else { return };
        let output = lab.ok(&["cp", "-r", "vol:/", "out", "-d", "pass"]);
        let said = text(&output.stderr);
        assert_eq!(said, "warning: /pipe: skipped, because it is a FIFO\n");
        assert_eq!(lab.read("out/data"), lab.read("tree/data"));
        let data = fs::metadata(lab.path("out/data")).unwrap();
        // The owner is another one, so it does not become set-user-ID.
        assert_eq!(data.mode() & 0o7777, 0o640);
        assert_eq!(data.mtime(), TIME.as_secs().cast_signed());
        assert_eq!(fs::metadata(lab.path("out/etc")).unwrap().mode() & 0o7777, 0o750);
        for (link, target) in
            [("link", "passwd"), ("absolute", "/etc/passwd"), ("dangling", "../../../etc/nowhere")]
        {
            let found = fs::read_link(lab.path("out/etc").join(link)).unwrap();
            assert_eq!(found.to_str(), Some(target));
        }
        let sparse = fs::metadata(lab.path("out/sparse")).unwrap();
        assert_eq!(lab.read("out/sparse"), lab.read("tree/sparse"));
        assert!(sparse.blocks() * 512 < 100 << 10, "{} blocks", sparse.blocks());
    }
}

/// The crate takes a missing table of blocks for damage; the error must not say so.
#[test]
fn large_hole_is_copied_from_ext4_and_named_in_ext2() {
    for kind in ["ext4", "ext2"] {
        let script = format!(
            "cd tree; truncate -s 3M sparse; echo end >> sparse; cd ..; \
             mke2fs -q -F -t {kind} -d tree plain"
        );
        let Some(lab) = volume(&script) else { return };
        let words = ["cp", "vol:/sparse", "out", "-d", "pass"];
        if kind == "ext4" {
            lab.ok(&words);
            assert_eq!(lab.read("out/sparse"), lab.read("tree/sparse"));
        } else {
            let said = lab.refused(&words, 1);
            assert!(
                said.contains("vol:/sparse: cannot read it: the file has a large hole"),
                "{said}"
            );
        }
    }
}

#[test]
fn one_file_is_copied_to_a_directory_a_name_and_standard_output() {
    let Some(lab) = ext("ext4") else { return };
    lab.ok(&["cp", "vol:/etc/passwd", "out", "-d", "pass"]);
    lab.ok(&["cp", "vol:/etc/absolute", "out/name", "-d", "pass"]);
    for name in ["out/passwd", "out/name"] {
        assert_eq!(lab.read(name), b"root:x:0:0\n");
    }
    let output = lab.ok(&["cp", "vol:/etc/link", "-", "-d", "pass"]);
    assert_eq!(text(&output.stdout), "root:x:0:0\n");
    // A link of the volume leads to a file of the volume, or nowhere.
    let outside = lab.refused(&["cp", "vol:/etc/dangling", "out", "-d", "pass"], 1);
    assert!(outside.contains("vol:/etc/nowhere: there is no such file in the volume"), "{outside}");
}

#[test]
fn files_that_exist_are_kept_unless_replacing_is_asked_for() {
    let Some(lab) = ext("ext4") else { return };
    lab.write("out/passwd", "mine");
    lab.write("precious", "mine");
    let words = ["cp", "vol:/etc/passwd", "out", "-d", "pass"];
    let refused = lab.refused(&words, 5);
    assert!(refused.contains("out/passwd: exists already") && refused.contains("--force"));
    assert_eq!(lab.read("out/passwd"), b"mine");
    // A link is replaced, not its target.
    fs::remove_file(lab.path("out/passwd")).unwrap();
    symlink(lab.path("precious"), lab.path("out/passwd")).unwrap();
    lab.ok(&[&words[..], &["--force"]].concat());
    assert_eq!(
        (lab.read("out/passwd"), lab.read("precious")),
        (b"root:x:0:0\n".into(), b"mine".into())
    );
    let words = ["cp", "vol:/etc/passwd", "vol", "--force", "-d", "pass"];
    assert!(lab.refused(&words, 5).contains("is in use"));
    assert!(
        lab.refused(&["cp", "-r", "vol:/etc", "out/passwd", "-d", "pass"], 5).contains("exists")
    );
    lab.ok(&["cp", "-r", "vol:/etc", "out", "-d", "pass"]);
    assert!(lab.refused(&["cp", "-r", "vol:/etc", "out", "-d", "pass"], 5).contains("etc: exists"));
    lab.ok(&["cp", "-r", "vol:/etc", "out", "-d", "pass", "--force"]);
}

#[test]
fn mistakes_are_one_error_with_their_place() {
    let Some(lab) = ext("ext4") else { return };
    for (words, part) in [
        (&["cp", "vol:/etc", "out"][..], "vol:/etc: this is a directory; --recursive copies it"),
        (&["cp", "vol:/missing", "out"], "vol:/missing: there is no such file in the volume"),
        (&["cp", "vol:/data/below", "out"], "vol:/data: this is a file and no directory"),
        (&["cp", "vol:/pipe", "out"], "vol:/pipe: this is a FIFO, which cannot be copied"),
        (&["cp", "vol", "out"], "vol: name a file in a volume, as in home.img:/etc/fstab"),
        (&["cp", "pass", "vol:/etc/pass"], "cp copies out of a volume only"),
        (&["cp", "vol:/data", "missing/data"], "cannot write missing"),
        (&["ls", ":/etc"], "the volume in front of `:/` is missing"),
        (
            &["ls", "vol", "--inner-partition", "3"],
            "--inner-partition \"3\": the plaintext has no partition table",
        ),
    ] {
        let said = lab.refused(&[words, &["-d", "pass"]].concat(), 1);
        assert!(said.contains(part), "{words:?}: {said}");
    }
}

#[test]
fn path_without_its_slash_is_named() {
    let lab = Lab::new();
    lab.volume("vol");
    for words in [&["ls", "vol:etc"][..], &["cp", "vol:etc", "."]] {
        let said = lab.refused(&[words, &["-d", "pass"]].concat(), 4);
        assert!(said.contains("begins with a slash: vol:/etc"), "{said}");
    }
}

#[test]
fn damaged_inode_is_an_error_beside_the_rest_of_the_list() {
    let script = "mke2fs -q -F -t ext4 -d tree plain; debugfs -w -R 'sif /etc mode 0' plain";
    let Some(lab) = volume(script) else { return };
    for words in [&["ls", "vol"][..], &["ls", "--json", "vol"]] {
        let output = lab.run(&[words, &["-d", "pass"]].concat());
        assert!(lab::one_error(&output, 1).contains("vol:/etc: cannot read it"));
        let listed = text(&output.stdout);
        assert!(listed.contains("data") && listed.contains("lost+found"), "{listed}");
    }
    let said = lab.refused(&["cp", "-r", "vol:/", "out", "-d", "pass"], 1);
    assert!(said.contains("vol:/etc: cannot read it"), "{said}");
}

#[test]
fn fat_is_listed_and_copied() {
    for (bits, cluster) in [("12", "8"), ("16", "4")] {
        let script = format!(
            "mkfs.fat -F {bits} -s {cluster} plain; mcopy -s -m -i plain tree/etc tree/data ::/; \
             mcopy -i plain tree/data '::/a long name, with Case'"
        );
        let Some(lab) = volume(&script) else { return };
        let list = text(&lab.ok(&["ls", "-l", "vol", "-d", "pass"]).stdout);
        assert!(list.contains("-rw-------     -     - 300000 2020-02-02 02:02 data\n"), "{list}");
        lab.ok(&["cp", "-r", "vol:/", "out", "-d", "pass"]);
        assert_eq!(lab.read("out/a long name, with Case"), lab.read("tree/data"));
        assert_eq!(lab.read("out/etc/passwd"), b"root:x:0:0\n");
        let data = fs::metadata(lab.path("out/data")).unwrap();
        assert_eq!((data.mode() & 0o7777, data.mtime()), (0o600, TIME.as_secs().cast_signed()));
    }
}

#[test]
fn iso_is_listed_and_copied_by_the_names_that_it_has() {
    for (options, passwd, data) in [
        ("-R", "etc/passwd", "a long name, with Case"),
        ("-J", "etc/passwd", "a long name, with Case"),
        ("-R -J", "etc/passwd", "a long name, with Case"),
        ("", "ETC/PASSWD", "A_LONG_N"),
    ] {
        let script = format!(
            "mv tree/data 'tree/a long name, with Case'; ln -s etc/passwd tree/link; \
             genisoimage -quiet {options} -o plain tree; truncate -s 16252928 plain"
        );
        let Some(lab) = volume(&script) else { return };
        let list = text(&lab.ok(&["ls", "-l", "vol", "-d", "pass"]).stdout);
        assert!(list.contains(data), "{options}: {list}");
        lab.ok(&["cp", "-r", "vol:/", "out", "-d", "pass"]);
        assert_eq!(lab.read(&format!("out/{passwd}")), b"root:x:0:0\n", "{options}");
        let copy = lab.path("out").join(data);
        assert_eq!(fs::read(&copy).unwrap(), lab.read("tree/a long name, with Case"), "{options}");
        if options.contains("-R") {
            let copy = fs::metadata(copy).unwrap();
            assert_eq!((copy.mode() & 0o777, copy.mtime()), (0o640, TIME.as_secs().cast_signed()));
            assert_eq!(fs::read_link(lab.path("out/link")).unwrap().to_str(), Some("etc/passwd"));
        }
    }
}

#[test]
fn file_system_that_cannot_be_read_is_named_with_another_way() {
    let Some(lab) = volume("mkntfs -q -F plain") else { return };
    let said = lab.refused(&["ls", "vol", "-d", "pass"], 1);
    assert!(said.contains("vol: the volume has NTFS, which Blockyard cannot read"), "{said}");
    assert!(said.contains("blockyard mount"), "{said}");
}
