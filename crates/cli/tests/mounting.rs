//! Mounts by FUSE as an ordinary user: the plaintext as a file, the files in it, and every end.
//!
//! Root runs the commands as nobody. Where this machine refuses FUSE, a test says so and ends.

mod lab;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use lab::home::{HEADER_BYTES, Home, IMAGE_BYTES, child_of, has, wait_for_end};
use lab::nbd::Nbd;
use lab::{Server, noise, one_error, text};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

#[test]
fn plaintext_is_a_file_that_an_ordinary_user_reads_and_writes() {
    let home = Home::new();
    home.volume("vol.img", &noise(1 << 20, 1));
    if !home.mount(&["vol.img", "dir", "--as-file"]) {
        return;
    }
    assert_eq!(home.sh("stat -c '%a %s' dir/vol"), format!("600 {}\n", IMAGE_BYTES - HEADER_BYTES));
    home.sh("cmp -n 1048576 plain dir/vol");
    home.sh("printf changed | dd of=dir/vol bs=1 seek=1000 conv=notrunc,fsync status=none");
    let busy = home.refused(&["serve", "vol.img", "-d", "pass", "--socket", "s"], 5);
    assert!(busy.contains("in use"), "{busy}");
    home.ok(&["umount", "dir"]);
    assert_eq!(home.leftovers(), [""; 0]);
    home.lab.ok(&["dump", "vol.img", "-d", "pass", "-o", "out"]);
    assert_eq!(home.lab.read("out")[1000..1007], *b"changed");
    let gone = home.refused(&["umount", "dir"], 1);
    assert!(gone.contains("nothing is mounted"), "{gone}");
}

#[test]
fn umount_of_the_file_in_a_mount_ends_the_mount() {
    let home = Home::new();
    home.volume("vol", b"plaintext");
    if !home.mount(&["vol", "dir", "--as-file"]) {
        return;
    }
    home.ok(&["umount", "dir/vol"]);
    assert_eq!(home.leftovers(), [""; 0]);
}

/// A stopped driver is continued, so that it writes back and ends.
#[test]
fn umount_of_a_mount_with_a_stopped_driver_ends_it() {
    let home = Home::new();
    if !home.ext4() {
        return;
    }
    let Some(mount) = home.foreground(&["vol", "dir"]) else { return };
    home.sh("echo kept > dir/file");
    kill_process(mount.child_pid(), Signal::STOP).unwrap();
    home.ok(&["umount", "dir", "--lazy"]);
    assert_eq!(mount.end().0, Some(0));
    assert_eq!(text(&home.run(&["cp", "vol:/file", "-", "-d", "pass"]).stdout), "kept\n");
}

/// Spellings of mount(8), qemu-nbd and nbdkit.
#[test]
fn options_of_other_programs_are_accepted_or_answered_with_ours() {
    let home = Home::new();
    home.volume("vol", b"no file system");
    let sentence = home.refused(&["mount", "-o", "ro", "vol", "dir", "-d", "pass"], 1);
    assert!(sentence.contains("-o is --offset SECTORS here"), "{sentence}");
    assert!(sentence.contains("--read-only"), "{sentence}");
    let unknown = home.run(&["mount", "vol", "dir", "--uid", "no-such-user"]);
    assert!(text(&unknown.stderr).contains("there is no such user"), "{}", text(&unknown.stderr));
    let known = home.refused(&["mount", "vol", "full", "--uid", "root", "-d", "pass"], 1);
    assert!(!known.contains("--uid"), "{known}");
    let served = home.refused(&["serve", "-c", "vol"], 1);
    assert!(served.contains("-c is --cipher here"), "{served}");
}

#[test]
fn plaintext_is_mounted_over_its_own_image() {
    let home = Home::new();
    home.volume("vol.img", b"the plaintext");
    if !home.mount(&["vol.img", "vol.img", "--as-file", "--read-only"]) {
        return;
    }
    assert_eq!(home.sh("head -c 13 vol.img"), "the plaintext");
    home.sh_fails("printf x | dd of=vol.img conv=notrunc status=none");
    home.ok(&["umount", "vol.img"]);
    assert_eq!(home.sh("head -c 4 vol.img"), "LUKS");
}

#[test]
fn ext4_is_mounted_edited_unmounted_and_sound() {
    let home = Home::new();
    if !home.ext4() || !home.mount(&["vol", "dir"]) {
        return;
    }
    home.sh("mkdir dir/new; head -c 3000000 plain > dir/new/copy; echo hi > dir/hi");
    home.sh("mv dir/new/copy dir/new/moved");
    home.ok(&["umount", "dir"]);
    assert_eq!(home.leftovers(), [""; 0]);
    assert!(home.mount(&["vol", "dir", "--as-file"]));
    home.sh("PATH=$PATH:/sbin:/usr/sbin; e2fsck -fn dir/vol");
    home.ok(&["umount", "dir"]);
    assert!(home.mount(&["vol", "dir", "-r"]));
    assert_eq!(home.sh("cat dir/hi; head -c 3000000 plain | cmp - dir/new/moved"), "hi\n");
    home.sh_fails("touch dir/other");
    // Also the usual command ends all parts; the next one waits for that.
    home.sh("fusermount3 -u dir");
    let ended = home.run(&["mount", "vol", "dir", "-d", "pass"]);
    if ended.status.success() {
        home.ok(&["umount", "dir"]);
    } else {
        assert_eq!(ended.status.code(), Some(5), "{}", text(&ended.stderr));
    }
}

/// ntfs-3g runs as root, which may read a mount of this user only if the system permits it.
#[test]
fn ntfs_is_mounted_for_its_user_only_or_the_missing_permission_is_named() {
    let home = Home::new();
    let made = home.file_system("vol", "mkntfs", &["-q", "-F", "plain"]) && has("ntfs-3g");
    if !made {
        return;
    }
    let output = home.run(&["mount", "vol", "dir", "-d", "pass"]);
    if !output.status.success() {
        let said = one_error(&output, 1);
        assert!(said.contains("user_allow_other") || said.contains("/dev/fuse"), "{said}");
        assert_eq!(home.leftovers(), [""; 0]);
        return;
    }
    home.sh("echo hi > dir/file");
    assert_eq!(home.sh("stat -c %a dir/file; cat dir/file"), "700\nhi\n");
    home.ok(&["umount", "dir"]);
    assert_eq!(home.leftovers(), [""; 0]);
}

#[test]
fn squashfs_is_mounted_and_read() {
    let home = Home::new();
    fs::create_dir(home.lab.path("tree")).unwrap();
    home.lab.write("tree/file", noise(100_000, 3));
    let words = ["tree", "plain", "-quiet", "-noappend", "-no-progress"];
    let made = home.file_system("vol", "mksquashfs", &words) && has("squashfuse");
    if !made || !home.mount(&["vol", "dir"]) {
        return;
    }
    home.sh("cmp dir/file tree/file");
    home.ok(&["umount", "dir"]);
    assert_eq!(home.leftovers(), [""; 0]);
}

#[test]
fn partition_inside_the_volume_is_chosen_by_its_number() {
    let home = Home::new();
    let mut disk = noise(8 << 20, 4);
    disk[..512].fill(0);
    // One partition of Linux: 4 MiB from 2 MiB on.
    disk[446..462].copy_from_slice(&[0, 0, 2, 0, 0x83, 0, 2, 0, 0, 16, 0, 0, 0, 32, 0, 0]);
    disk[510..512].copy_from_slice(b"\x55\xaa");
    home.volume("vol", &disk);
    if !home.mount(&["vol", "dir", "--as-file", "--inner-partition", "1", "--name", "part"]) {
        return;
    }
    assert_eq!(home.sh("stat -c %s dir/part"), format!("{}\n", 4 << 20));
    home.sh("tail -c +2097153 plain | head -c 4194304 | cmp - dir/part");
    home.ok(&["umount", "dir"]);
    let choose = home.refused(&["mount", "vol", "dir", "-d", "pass"], 1);
    assert!(choose.contains("partitions: 1; choose one with --inner-partition"), "{choose}");
    let words = ["mount", "vol", "dir", "-d", "pass", "--inner-partition", "7"];
    let missing = home.refused(&words, 1);
    assert!(missing.contains("vol: --inner-partition \"7\": "), "{missing}");
    assert!(!missing.contains(" --partition"), "{missing}");
}

#[test]
fn mount_of_a_killed_process_is_named_and_removed() {
    let home = Home::new();
    home.volume("vol", b"plaintext");
    let Some(mount) = home.foreground(&["vol", "dir", "--as-file"]) else { return };
    kill_process(mount.pid(), Signal::KILL).unwrap();
    mount.end();
    home.sh_fails("ls dir");
    let stale = home.refused(&["mount", "vol", "dir", "--as-file", "-d", "pass"], 1);
    assert!(stale.contains("`blockyard umount dir` removes it"), "{stale}");
    home.ok(&["umount", "dir"]);
    assert_eq!(home.leftovers(), [""; 0]);
    assert!(home.mount(&["vol", "dir", "--as-file"]));
    home.ok(&["umount", "dir"]);
}

#[test]
fn refused_file_system_is_repaired_as_a_file() {
    let home = Home::new();
    if !home.ext4() || !has("e2fsck") {
        return;
    }
    if !home.mount(&["vol", "dir", "--as-file"]) {
        return;
    }
    // The mount count, without the checksum of the superblock.
    home.sh("printf '\\377' | dd of=dir/vol bs=1 seek=1076 conv=notrunc");
    home.ok(&["umount", "dir"]);
    let refused = home.refused(&["mount", "vol", "dir", "-d", "pass"], 1);
    assert!(refused.contains("Please run e2fsck"), "{refused}");
    assert!(refused.contains("`blockyard mount --as-file` shows"), "{refused}");
    home.ok(&["mount", "vol", "dir", "--as-file", "-d", "pass"]);
    home.sh("e2fsck -fy dir/vol || test $? = 1");
    home.ok(&["umount", "dir"]);
    assert!(home.mount(&["vol", "dir"]));
    home.ok(&["umount", "dir"]);
}

#[test]
fn death_of_either_process_ends_the_other_and_leaves_nothing() {
    let home = Home::new();
    if !home.ext4() {
        return;
    }
    let Some(mount) = home.foreground(&["vol", "dir"]) else { return };
    // Its first request waits for the superblock, which fuse2fs writes in pieces after the mount.
    home.sh("ls dir");
    let driver = mount.child_pid();
    kill_process(driver, Signal::KILL).unwrap();
    let (code, said) = mount.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the driver fuse2fs was ended by signal 9"), "{said}");
    assert_eq!(home.leftovers(), [""; 0]);

    let mount = home.foreground(&["vol", "dir"]).unwrap();
    let driver = pidfd_open(mount.child_pid(), PidfdFlags::empty()).unwrap();
    kill_process(mount.pid(), Signal::KILL).unwrap();
    mount.end();
    wait_for_end(&driver);
    home.ok(&["umount", "dir"]);
    assert_eq!(home.leftovers(), [""; 0]);
}

#[test]
fn death_of_the_broker_ends_the_mount_and_loses_nothing() {
    let home = Home::new();
    if !home.ext4() {
        return;
    }
    let Some(mount) = home.foreground(&["vol", "dir"]) else { return };
    home.sh("echo kept > dir/file");
    let broker = child_of(mount.pid()).unwrap();
    kill_process(broker, Signal::KILL).unwrap();
    let (code, said) = mount.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("dir: the process outside of the sandbox has ended"), "{said}");
    home.ok(&["umount", "dir"]);
    assert_eq!(home.leftovers(), [""; 0]);
    assert_eq!(text(&home.run(&["cp", "vol:/file", "-", "-d", "pass"]).stdout), "kept\n");

    let mount = home.foreground(&["vol", "dir", "--as-file"]).unwrap();
    kill_process(mount.child_pid(), Signal::KILL).unwrap();
    let (code, said) = mount.end();
    assert_eq!(code, Some(1), "{said}");
    home.ok(&["umount", "dir"]);
    assert_eq!(home.leftovers(), [""; 0]);
}

#[test]
fn driver_ends_though_all_processes_of_its_mount_are_killed_at_once() {
    let home = Home::new();
    if !home.ext4() {
        return;
    }
    let Some(mount) = home.foreground(&["vol", "dir"]) else { return };
    let broker = child_of(mount.pid()).unwrap();
    let driver = pidfd_open(mount.child_pid(), PidfdFlags::empty()).unwrap();
    for one in [broker, mount.pid()] {
        kill_process(one, Signal::STOP).unwrap();
    }
    for one in [mount.pid(), broker] {
        kill_process(one, Signal::KILL).unwrap();
    }
    mount.end();
    wait_for_end(&driver);
    home.ok(&["umount", "dir"]);
    assert_eq!(home.leftovers(), [""; 0]);
}

/// The broker does not answer any more, and the mount must end all the same.
#[test]
fn mount_whose_broker_is_stopped_ends() {
    let home = Home::new();
    home.volume("vol", b"plaintext");
    let Some(mount) = home.foreground(&["vol", "dir", "--as-file"]) else { return };
    let broker = mount.child_pid();
    kill_process(broker, Signal::STOP).unwrap();
    kill_process(mount.pid(), Signal::TERM).unwrap();
    let pid = mount.pid();
    let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    wait_for_end(&process);
    kill_process(broker, Signal::KILL).unwrap();
    mount.end();
    home.ok(&["umount", "dir"]);
    assert_eq!(home.leftovers(), [""; 0]);
}

/// The broker passes no signal on to the driver, and the mount must end all the same.
#[test]
fn mount_with_a_driver_whose_broker_is_stopped_ends() {
    let home = Home::new();
    if !home.ext4() {
        return;
    }
    let Some(mount) = home.foreground(&["vol", "dir"]) else { return };
    let driver = pidfd_open(mount.child_pid(), PidfdFlags::empty()).unwrap();
    let broker = child_of(mount.pid()).unwrap();
    kill_process(broker, Signal::STOP).unwrap();
    kill_process(mount.pid(), Signal::TERM).unwrap();
    let process = pidfd_open(mount.pid(), PidfdFlags::empty()).unwrap();
    wait_for_end(&process);
    kill_process(broker, Signal::CONT).unwrap();
    let (code, said) = mount.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("does not answer"), "{said}");
    wait_for_end(&driver);
    home.ok(&["umount", "dir"]);
    assert_eq!(home.leftovers(), [""; 0]);
}

/// A user may rename a folder above a mount of root, and give its name to another one.
#[test]
fn only_the_own_mount_is_unmounted() {
    let home = Home::new();
    home.volume("vol", b"plaintext");
    home.volume("vol2", b"other");
    home.sh("mkdir -p up/dir");
    let Some(mount) = home.foreground(&["vol", "up/dir", "--as-file"]) else { return };
    home.sh("mv up moved; mkdir -p up/dir");
    assert!(home.mount(&["vol2", "up/dir", "--as-file"]));
    kill_process(mount.pid(), Signal::TERM).unwrap();
    let (_, said) = mount.end();
    assert!(said.contains("up/dir: cannot unmount it: "), "{said}");
    assert_eq!(home.sh("head -c 5 up/dir/vol2"), "other");
    home.ok(&["umount", "up/dir"]);
    home.ok(&["umount", "moved/dir"]);
}

#[test]
fn mount_in_use_is_kept_unless_its_end_is_forced() {
    let home = Home::new();
    home.volume("vol", b"plaintext");
    let Some(mount) = home.foreground(&["vol", "dir", "--as-file"]) else { return };
    let user = |script: &str| {
        let mut command = home.command("sh");
        command.args(["-c", &format!("exec 7<dir/vol; echo open; {script}")]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "open\n");
        (child, out)
    };
    let (mut reader, mut out) = user("read go; head -c 5 <&7 2>&1");
    let busy = home.refused(&["umount", "dir"], 5);
    let wanted = "dir: programs use the mount; end them, or unmount it with --lazy";
    assert!(busy.ends_with(wanted), "{busy}");
    let forced = home.run(&["umount", "dir", "--lazy"]);
    assert!(forced.status.success() && text(&forced.stderr).contains("still have the volume open"));
    let (code, said) = mount.end();
    assert_eq!(code, Some(0), "{said}");
    drop(reader.stdin.take());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert!(!line.starts_with("plain"), "the volume is closed: {line}");
    reader.wait().unwrap();
    assert_eq!(home.leftovers(), [""; 0]);
}

/// Another session has another runtime directory, and so cannot ask the process of the mount.
#[test]
fn mount_in_use_is_kept_by_an_umount_of_another_session() {
    let home = Home::new();
    home.volume("vol", b"plaintext");
    fs::create_dir(home.lab.path("other")).unwrap();
    home.give();
    if !home.mount(&["vol", "dir", "--as-file"]) {
        return;
    }
    let mut command = home.command("sh");
    command.args(["-c", "exec 7<dir/vol; echo open; read go"]);
    let mut user = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(user.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let mut umount = home.blockyard(&["umount", "dir"]);
    let said = umount.env("XDG_RUNTIME_DIR", home.lab.path("other")).output().unwrap();
    assert!(!said.status.success(), "{}", text(&said.stderr));
    assert_eq!(home.sh("head -c 9 dir/vol"), "plaintext");
    drop(user.stdin.take());
    user.wait().unwrap();
    home.ok(&["umount", "dir"]);
}

#[test]
fn umount_of_another_session_ends_a_mount_with_a_driver() {
    let home = Home::new();
    fs::create_dir(home.lab.path("other")).unwrap();
    if !home.ext4() {
        return;
    }
    let Some(mount) = home.foreground(&["vol", "dir"]) else { return };
    let mut umount = home.blockyard(&["umount", "dir"]);
    let said = umount.env("XDG_RUNTIME_DIR", home.lab.path("other")).output().unwrap();
    assert!(said.status.success(), "{}", text(&said.stderr));
    assert_eq!(mount.end().0, Some(0));
}

/// A Ctrl-C in the terminal goes to the process group of the command that has mounted.
#[test]
fn driver_is_in_a_process_group_of_its_own() {
    let home = Home::new();
    if !home.ext4() {
        return;
    }
    let Some(mount) = home.foreground(&["vol", "dir"]) else { return };
    let driver = mount.child_pid();
    assert_eq!(rustix::process::getpgid(Some(driver)).unwrap(), driver);
    kill_process(mount.pid(), Signal::INT).unwrap();
    assert_eq!(mount.end().0, Some(0));
    assert_eq!(home.leftovers(), [""; 0]);
}

/// A field of all threads of a process: proc(5).
fn of_threads(pid: Pid, field: &str) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).unwrap();
    let value = |thread: fs::DirEntry| {
        let facts = fs::read_to_string(thread.path().join("status")).unwrap();
        let line = facts.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().to_owned()
    };
    threads.map(|thread| value(thread.unwrap())).collect()
}

#[test]
fn process_of_a_mount_is_limited_and_its_driver_only_to_the_cpus() {
    let home = Home::new();
    if !home.ext4() {
        return;
    }
    for (more, value) in [(&[][..], "2"), (&["--sandbox", "off"], "0"), (&["--as-file"], "2")] {
        let words = [&["vol", "dir", "--threads", "3", "--cpus", "0"], more].concat();
        let Some(mount) = home.foreground(&words) else { return };
        let cpus = of_threads(mount.pid(), "Cpus_allowed_list:");
        assert!(cpus.iter().all(|list| list == "0"), "{more:?}: {cpus:?}");
        let limits = of_threads(mount.pid(), "Seccomp:");
        assert!(limits.len() > 3 && limits.iter().all(|one| one == value), "{more:?}: {limits:?}");
        let is_limited = if value == "2" { "1" } else { "0" };
        let privileges = of_threads(mount.pid(), "NoNewPrivs:");
        assert!(privileges.iter().all(|one| one == is_limited), "{more:?}: {privileges:?}");
        // With `--as-file` the youngest child is the broker.
        assert_eq!(of_threads(mount.child_pid(), "Seccomp:")[0], "0");
        assert_eq!(of_threads(mount.child_pid(), "Cpus_allowed_list:")[0], "0");
        kill_process(mount.pid(), Signal::TERM).unwrap();
        assert_eq!(mount.end().0, Some(0));
        assert_eq!(home.leftovers(), [""; 0]);
    }
}

#[test]
fn signal_ends_a_mount_with_open_files_in_order() {
    let home = Home::new();
    if !home.ext4() {
        return;
    }
    let Some(mount) = home.foreground(&["vol", "dir"]) else { return };
    home.sh("echo kept > dir/file");
    let mut command = home.command("sh");
    command.args(["-c", "exec 7<dir/file; echo open; read go"]);
    let mut user = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(user.stdout.take().unwrap()).read_line(&mut line).unwrap();
    kill_process(mount.pid(), Signal::TERM).unwrap();
    let (code, said) = mount.end();
    assert_eq!(code, Some(0), "{said}");
    drop(user.stdin.take());
    user.wait().unwrap();
    assert_eq!(home.leftovers(), [""; 0]);
    assert!(home.mount(&["vol", "dir"]));
    assert_eq!(home.sh("cat dir/file"), "kept\n");
    home.ok(&["umount", "dir"]);
}

#[test]
fn bad_targets_and_keys_are_one_error_of_the_caller() {
    let home = Home::new();
    home.volume("vol", b"no file system");
    home.lab.write("wrong", "wrong");
    home.give();
    home.sh("mkfifo fifo; mkdir full; touch full/file; cp vol fixed; chmod 444 fixed");
    for (words, code, part) in [
        (&["mount", "vol", "fifo", "--as-file", "-d", "pass"][..], 1, "a FIFO"),
        (&["mount", "vol", "full", "--as-file", "-d", "pass"], 1, "not empty"),
        (&["mount", "vol", "nowhere", "--as-file", "-d", "pass"], 1, "`mkdir nowhere`"),
        (&["mount", "fixed", "dir", "-d", "pass"], 1, "for writing: this user may only read it"),
        (&["mount", "vol/etc", "dir", "-d", "pass"], 1, "a file in this volume is vol:/etc"),
        (&["mount", "vol", "full/file", "-d", "pass"], 1, "--as-file"),
        (&["mount", "vol", "dir", "-d", "pass"], 1, "vol: the plaintext has no known file system"),
        (&["mount", "vol", "dir", "--as-file", "-d", "wrong"], 2, "passphrase"),
        (&["mount", "vol", "dir", "--as-file", "-d", "pass", "--name", "a/b"], 1, "--name"),
        (&["umount", "full"], 1, "nothing is mounted"),
        (&["umount", "/proc"], 1, "not Blockyard's"),
    ] {
        let output = home.run(words);
        let said = text(&output.stderr);
        if said.contains("/dev/fuse") {
            println!("skipped: {said}");
            return;
        }
        let said = one_error(&output, code);
        assert!(said.contains(part), "{words:?}: {said}");
    }
    assert_eq!(home.leftovers(), [""; 0]);
}

#[test]
fn missing_driver_is_named_with_its_package_and_the_volume() {
    let home = Home::new();
    let mut btrfs = vec![0; 70_000];
    btrfs[65_600..65_608].copy_from_slice(b"_BHRfS_M");
    let mut exfat = vec![0; 4096];
    exfat[3..11].copy_from_slice(b"EXFAT   ");
    for (plaintext, part) in [
        (
            btrfs,
            "vol: the volume has btrfs, and its driver lklfuse is missing; it is in the package",
        ),
        (exfat, "vol: the volume has exFAT, which no program can show"),
    ] {
        home.volume("vol", &plaintext);
        let output =
            home.blockyard(&["mount", "vol", "dir", "-d", "pass"]).env("PATH", "/bin").output();
        let said = text(&output.unwrap().stderr);
        assert!(said.contains(part) || said.contains("/dev/fuse"), "{said}");
        fs::remove_file(home.lab.path("vol")).unwrap();
    }
}

#[test]
fn fat_is_mounted_edited_unmounted_and_sound() {
    let home = Home::new();
    for bits in ["12", "16", "32"] {
        let sectors = ["8", "1"][usize::from(bits != "12")];
        let words = ["-F", bits, "-s", sectors, "plain"];
        if !home.file_system("vol", "mkfs.fat", &words) || !home.mount(&["vol", "dir"]) {
            return;
        }
        home.sh("mkdir dir/new; head -c 3000000 plain > dir/new/copy; echo hi > 'dir/A long name'");
        home.sh("mv dir/new/copy dir/new/moved; cp dir/new/moved dir/other; rm dir/other");
        home.sh(
            "printf changed | dd of=dir/new/moved bs=1 seek=1000 conv=notrunc,fsync status=none",
        );
        home.sh(
            "mkdir dir/sub; mv dir/new dir/sub; touch -d '2020-02-02 02:02:02Z' dir/sub/new/moved",
        );
        home.sh("truncate -s 2000000 dir/sub/new/moved; test -e 'dir/a LONG name'");
        home.sh("exec 5<'dir/A long name'; rm 'dir/A long name'; test \"$(cat <&5)\" = hi");
        assert_eq!(home.sh("stat -c %a dir/sub; ls dir"), "700\nsub\n");
        home.ok(&["umount", "dir"]);
        assert_eq!(home.leftovers(), [""; 0]);
        assert!(home.mount(&["vol", "dir", "--as-file"]));
        let report = home.sh("PATH=$PATH:/sbin:/usr/sbin; fsck.fat -n dir/vol");
        assert_eq!(report.lines().count(), 2, "{report}");
        home.ok(&["umount", "dir"]);
        assert!(home.mount(&["vol", "dir", "-r"]));
        assert_eq!(home.sh("stat -c '%s %a' dir/sub/new/moved"), "2000000 700\n");
        home.sh("head -c 1000 plain | cmp -n 1000 - dir/sub/new/moved");
        assert_eq!(
            home.sh("dd if=dir/sub/new/moved bs=1 skip=1000 count=7 status=none"),
            "changed"
        );
        home.sh_fails("touch dir/other");
        home.ok(&["umount", "dir"]);
        fs::remove_file(home.lab.path("vol")).unwrap();
    }
}

#[test]
fn signal_ends_a_mount_of_fat_with_open_files_in_order() {
    let home = Home::new();
    if !home.file_system("vol", "mkfs.fat", &["-F", "16", "-s", "1", "plain"]) {
        return;
    }
    let Some(mount) = home.foreground(&["vol", "dir"]) else { return };
    let mut command = home.command("sh");
    command.args(["-c", "exec 7>dir/file; echo kept >&7; echo open; read go"]);
    let mut user = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(user.stdout.take().unwrap()).read_line(&mut line).unwrap();
    kill_process(mount.pid(), Signal::TERM).unwrap();
    let (code, said) = mount.end();
    assert_eq!(code, Some(0), "{said}");
    drop(user.stdin.take());
    user.wait().unwrap();
    assert_eq!(home.leftovers(), [""; 0]);
    assert_eq!(text(&home.run(&["cp", "vol:/file", "-", "-d", "pass"]).stdout), "kept\n");
}

/// A mount that is stopped stands for a disk that does not answer.
#[test]
fn export_opens_while_the_disk_of_another_one_does_not_answer() {
    let home = Home::new();
    home.volume("vol", b"");
    home.lab.write("key", noise(64, 1));
    home.lab.write("b", vec![0; 1 << 20]);
    let export = |name: &str, volume: &str| {
        format!(
            "[exports.{name}]\nvolume = '{volume}'\ntype = 'plain'\nkey_file = 'key'\n\
             cipher = 'aes-xts-plain64'\nkey_size = 512\nopen = 'first-use'\n"
        )
    };
    let exports = export("a", "dir/vol") + &export("b", "b");
    home.lab.write("c.toml", format!("socket = 's'\nsandbox_allow = ['.']\n{exports}"));
    home.give();
    let Some(mount) = home.foreground(&["vol", "dir", "--as-file"]) else { return };
    let server = Server::start(home.blockyard(&["serve", "--config", "c.toml"]));
    let socket = home.lab.path("s");
    let mut on_it = Nbd::open_export(&socket, "a");
    // The kernel asks the mount for the file's attributes again after a read or a write.
    assert_eq!(on_it.write(0, &noise(4096, 2)), 0);
    assert_eq!(on_it.read(0, 4096), noise(4096, 2));
    kill_process(mount.pid(), Signal::STOP).unwrap();
    let (opened, answer) = channel();
    let client = thread::spawn(move || opened.send(Nbd::open_export(&socket, "b").read(0, 512)));
    // Far longer than an opening takes. The mount continues in any case, or nothing here could end.
    let answer = answer.recv_timeout(Duration::from_secs(30));
    kill_process(mount.pid(), Signal::CONT).unwrap();
    assert_eq!(answer.expect("the export opens").len(), 512);
    client.join().unwrap().unwrap();
    drop(on_it);
    assert!(server.stop(Signal::TERM).success());
    home.ok(&["umount", "dir"]);
    assert_eq!(mount.end().0, Some(0));
}
