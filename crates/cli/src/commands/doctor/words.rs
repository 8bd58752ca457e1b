//! Findings of `blockyard doctor` in words, each with the command that corrects it.

use std::path::Path;

use blockyard::doctor::{Fact, FileSystem, Finding, Secret, Severity, Subject, Weakness};
use blockyard::limit::Limit;
use blockyard::status::{Loss, LostServer};
use serde::Serialize;

use crate::failure::printable;
use crate::size::human_size;

/// A finding in words; as JSON for programs.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Words {
    #[serde(rename = "grade")]
    severity: &'static str,
    place: String,
    /// The fact and its consequence.
    #[serde(rename = "seen")]
    fact: String,
    /// A command, or a setting and its place.
    #[serde(rename = "mend")]
    remedy: String,
}

impl Words {
    /// The words of a finding.
    pub(super) fn of(finding: &Finding) -> Self {
        let Finding { severity, subject, fact } = finding;
        let severity = match severity {
            Severity::Risky => "risky",
            Severity::Slow => "slow",
            Severity::Note => "note",
        };
        match subject {
            Subject::Machine => {
                let (fact, remedy) = of_machine(fact);
                Self { severity, place: "this machine".into(), fact, remedy }
            }
            Subject::Path(path) => {
                let (fact, remedy) = of_path(fact, path);
                Self { severity, place: path.display().to_string(), fact, remedy }
            }
            Subject::Server(socket) => {
                let (fact, remedy) = of_export(fact, socket, "");
                Self { severity, place: socket.display().to_string(), fact, remedy }
            }
            Subject::Export { socket, name } => {
                let (fact, remedy) = of_export(fact, socket, name);
                let place = printable(&format!("export {name:?}"));
                Self { severity, place, fact: printable(&fact), remedy }
            }
        }
    }
}

/// Findings as text, the worst first.
pub(super) fn text(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return "found nothing slow or risky\n".into();
    }
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| finding.severity);
    let block = |finding: &&Finding| {
        let Words { severity, remedy, place, fact } = Words::of(finding);
        let place = printable(&place);
        let fact = printable(&fact);
        let remedy = printable(&remedy);
        format!("{severity:<5}  {place}: {fact}\n       {remedy}\n")
    };
    sorted.iter().map(block).collect::<Vec<_>>().join("\n")
}

/// A fact about a machine, and its remedy.
fn of_machine(fact: &Fact) -> (String, String) {
    let (fact, remedy) = match fact {
        Fact::NoAesInstructions => (
            "the CPU has no AES instructions: AES takes many times as long".into(),
            "for new volumes: blockyard format --cipher xchacha12,aes-adiantum-plain64 \
             --key-size 256",
        ),
        Fact::Governor { cpus, governors } => (
            format!(
                "{cpus} CPUs have the frequency governor {}, which may take the bursts of \
                 encryption for idleness",
                governors.join(", ")
            ),
            "cpupower frequency-set --governor performance",
        ),
        Fact::Nodes { nodes } => (
            format!("the machine has {nodes} NUMA nodes, and memory of another node is slower"),
            "blockyard serve --numa auto, if the CPUs of one node suffice",
        ),
        Fact::Quota { quota_cpus, cpus } => (
            format!("the control group permits the time of {quota_cpus} of {cpus} CPUs"),
            "cpu.max of the control group, or CPUQuota= in the unit of the service",
        ),
        Fact::LockedMemory { limit_bytes } => (
            format!("only {limit_bytes} bytes may be locked in memory: keys can get into swap"),
            "ulimit -l 64, or LimitMEMLOCK=64K in the unit of the service",
        ),
        Fact::IoUringDisabled => (
            "io_uring is switched off for ordinary users: block devices and files with --direct \
             cannot be opened by them"
                .into(),
            "sysctl kernel.io_uring_disabled=0",
        ),
        other => (wordless(other), ""),
    };
    (fact, remedy.into())
}

/// A fact about a file, a device, a header or a configuration, and its remedy.
fn of_path(fact: &Fact, path: &Path) -> (String, String) {
    let shell = quoted(path);
    match fact {
        Fact::Readable { secret, by_all } => {
            let whom = if *by_all { "everybody" } else { "its group" };
            let secret = match secret {
                Secret::Volume => "it",
                Secret::Key => "this key",
            };
            (
                format!(
                    "{whom} on this machine can read {secret}, and try passphrases without limit"
                ),
                format!("chmod go-rwx {shell}"),
            )
        }
        Fact::Certificate(flaw) => (printable(&flaw.problem), flaw.remedy.clone()),
        Fact::FileSystem(file_system) => of_file_system(*file_system, &shell),
        Fact::NoHoles => (
            "its file system cannot make holes: space freed by TRIM stays allocated".into(),
            format!("cp --sparse=always {shell} to ext4, xfs or btrfs"),
        ),
        Fact::Sparse { len_bytes, missing_bytes, free_bytes } => (
            format!(
                "{} of it have no room yet, and {} are free: writes will fail before the volume \
                 is full",
                human_size(*missing_bytes),
                human_size(*free_bytes)
            ),
            format!("make room, then: fallocate --length {len_bytes} {shell}"),
        ),
        Fact::PageCache => (
            "its I/O goes through the page cache of this machine: fast where data are read again, \
             memory and time where they are not"
                .into(),
            format!("blockyard tune {shell} measures both ways"),
        ),
        Fact::OpenAddress { address } => (
            format!("{address} is open to the network, without encryption"),
            "tls_certificates = \"DIR\", which blockyard tls init makes; or socket = \"PATH\" and \
             ssh -L"
                .into(),
        ),
        Fact::Workers { threads, cpus } => (
            format!("{threads} cipher threads share {cpus} CPUs"),
            "leave threads out, or let blockyard tune find the number".into(),
        ),
        Fact::FewRequests { .. }
        | Fact::ShortRequests { .. }
        | Fact::TrimUnsupported { .. }
        | Fact::TrimDisabled { .. } => of_queue(fact),
        _ => of_header(fact, &shell),
    }
}

fn of_file_system(file_system: FileSystem, shell: &str) -> (String, String) {
    match file_system {
        FileSystem::Btrfs => (
            "it is on btrfs, which writes every change to a new place".into(),
            format!("in an empty folder: chattr +C . && cp {shell} ."),
        ),
        FileSystem::Overlay => (
            "it is in an overlay: the first write copies the whole file".into(),
            "put it into a volume of the container".into(),
        ),
        FileSystem::Tmpfs => (
            "it is in memory (tmpfs): it is lost when the machine stops".into(),
            format!("cp {shell} to a disk"),
        ),
        FileSystem::Network(name) => (
            format!("it is on {name}: locks and flushes depend on the server"),
            "serve it on the disk's machine: blockyard serve there, nbd:// here".into(),
        ),
    }
}

/// A fact about the queue of a block device.
fn of_queue(fact: &Fact) -> (String, String) {
    let set = |disk: &str, file: &str, value: u64| {
        format!("echo {value} > /sys/block/{disk}/queue/{file}")
    };
    match fact {
        Fact::FewRequests { disk, nr_requests, advised } => (
            format!("its queue holds only {nr_requests} requests: too few to sort"),
            set(disk, "nr_requests", *advised),
        ),
        Fact::ShortRequests { disk, max_kib, advised_kib } => (
            format!("it gets at most {max_kib} KiB at a time: longer requests are split"),
            set(disk, "max_sectors_kb", *advised_kib),
        ),
        Fact::TrimUnsupported { disk } => (
            "it takes no TRIM: what is freed in the volume stays taken, and an SSD behind it \
             becomes slower"
                .into(),
            format!("lsblk --discard /dev/{disk}: a USB bridge or a RAID may hide it"),
        ),
        Fact::TrimDisabled { disk, max_bytes } => {
            ("TRIM is switched off in its queue".into(), set(disk, "discard_max_bytes", *max_bytes))
        }
        other => (wordless(other), String::new()),
    }
}

/// A fact about a LUKS header, whose file is `shell` on a command line.
fn of_header(fact: &Fact, shell: &str) -> (String, String) {
    let reencrypt = |options: &str| format!("cryptsetup reencrypt {options} {shell}");
    match fact {
        Fact::SmallSectors { is_luks1 } => {
            let reencrypt = reencrypt("--sector-size 4096");
            let convert = if *is_luks1 {
                format!("blockyard header convert --type luks2 {shell} && ")
            } else {
                String::new()
            };
            (
                "each 512 bytes are encrypted for themselves, with an IV of their own: 4 KiB take \
                 longer than in one sector of 4096 bytes"
                    .into(),
                format!(
                    "a backup, then: {convert}{reencrypt} (if the file system in it has blocks of \
                     4096 bytes)"
                ),
            )
        }
        Fact::WeakCipher { cipher, weakness } => {
            let weakness = match weakness {
                Weakness::Null => "encrypts nothing",
                Weakness::Ecb => "reveals equal sectors",
                Weakness::PlainIv => {
                    "has predictable IVs: a specially made file is recognisable in it"
                }
            };
            (format!("{cipher} {weakness}"), new_cipher(shell))
        }
        Fact::SlowCipher { cipher } => (
            format!("{cipher} has no CPU instructions: AES is many times faster"),
            new_cipher(shell),
        ),
        Fact::NoTrim => (
            "TRIM is not passed down: what a file system frees stays taken below, and an SSD \
             becomes slower"
                .into(),
            "blockyard serve --allow-discards, if free areas may be revealed".into(),
        ),
        Fact::Header(notice) => (notice.to_string(), format!("blockyard repair {shell}")),
        Fact::OldHeader(signature) => (
            format!(
                "it holds {signature}, and of an older LUKS2 volume only the secondary header is \
                 left: it is not opened as a LUKS volume, and not repaired"
            ),
            format!("blockyard info --header-copy secondary {shell}, to read the old volume"),
        ),
        Fact::NoHeader { other } => (
            match other {
                Some(signature) => format!("no LUKS header here, but {signature}"),
                None => "no LUKS header here: only the storage was checked".into(),
            },
            "name a detached header with --header; a plain volume has none".into(),
        ),
        Fact::InPartition { partitions } => (
            "no encrypted volume at the start of the disk, but in a partition".into(),
            format!("--partition {}", partitions.first().copied().unwrap_or_default()),
        ),
        other => of_keyslot(other, shell),
    }
}

/// A fact about the keys of a volume.
fn of_keyslot(fact: &Fact, shell: &str) -> (String, String) {
    match fact {
        Fact::NoKeyslot => (
            "has no keyslot: no passphrase opens it".into(),
            "blockyard header restore, with a backup of the header".into(),
        ),
        Fact::ClearKey => (
            "opens without a passphrase: the protection of this BitLocker volume is suspended"
                .into(),
            "in Windows: manage-bde -protectors -enable".into(),
        ),
        Fact::KeyslotMemory { keyslot, needed_bytes, available_bytes } => (
            format!(
                "keyslot {keyslot} needs {} of memory, and {} may be used here",
                human_size(*needed_bytes),
                human_size(*available_bytes)
            ),
            format!(
                "where there is more: blockyard key convert --key-slot {keyslot} \
                 --pbkdf-memory {} {shell}",
                available_bytes / 2048
            ),
        ),
        Fact::KeyslotIterations { keyslot, iterations, is_luks1 } => (
            format!(
                "keyslot {keyslot} has {iterations} iterations of PBKDF2: passphrases can be \
                 tried fast"
            ),
            if *is_luks1 {
                format!("blockyard key change --key-slot {keyslot} {shell}")
            } else {
                format!("blockyard key convert --key-slot {keyslot} --pbkdf argon2id {shell}")
            },
        ),
        other => (wordless(other), String::new()),
    }
}

fn new_cipher(shell: &str) -> String {
    format!("a backup, then: cryptsetup reencrypt --cipher aes-xts-plain64 --key-size 512 {shell}")
}

/// A fact about a server or an export of it, and its remedy.
fn of_export(fact: &Fact, socket: &Path, name: &str) -> (String, String) {
    let command = |verb: &str, rest: &str| command(socket, name, verb, rest);
    match fact {
        Fact::ConnectionsTaken { max } => (
            format!("all {max} connections are taken: another client waits until one ends"),
            format!("blockyard serve --max-connections {}", max.saturating_mul(2).min(1024)),
        ),
        Fact::Lost(Loss { device, problem, .. }) => (
            format!(
                "acknowledged writes may be lost, so flushes and writes fail: {device}: {problem}"
            ),
            format!(
                "stop the clients, check the disk, then: {} && {}; then check the contents \
                 (fsck)",
                command("suspend", ""),
                command("resume", "--accept-loss")
            ),
        ),
        Fact::ServerLost(lost) => of_lost_server(lost),
        Fact::WriteRefused(refused) => (
            refused.to_string(),
            "stop the clients and then the server, and keep less data in the outer volume".into(),
        ),
        Fact::Errors { requests, transport } => of_errors(*requests, *transport),
        Fact::Suspended { requests } => (
            format!("it is suspended, and {requests} requests wait until it is resumed"),
            command("resume", ""),
        ),
        Fact::KeyWiped => (
            "its key is wiped: nothing can be read or written until `key set`".into(),
            command("message", "key set"),
        ),
        Fact::PathMissing { parts } => (
            format!(
                "{parts} parts of requests wait for a path; blockyard status shows which have \
                 failed"
            ),
            command("message", "reinstate_path DEVICE"),
        ),
        Fact::BuffersTaken { parts } => (
            format!("{parts} parts of requests wait for a buffer"),
            "fewer connections (--max-connections): they share the buffers".into(),
        ),
        Fact::Limited { limit, is_now } => {
            let when = if *is_now { "now" } else { "since the start" };
            (of_limit(limit, when), limit.change.clone())
        }
        Fact::FewConnections { connections, in_flight, idle_cpus, limit } => (
            format!(
                "too few connections: {connections:.0}, with {in_flight:.1} requests in flight \
                 each, while {idle_cpus:.1} CPUs are idle; {}",
                of_limit(limit, "now")
            ),
            "more connections, each has a thread: nbd-client -connections 4, nbdcopy \
             --connections=4, multi-conn=on in QEMU, connections=4 in a URI of blockyard"
                .into(),
        ),
        other => (wordless(other), String::new()),
    }
}

fn of_lost_server(LostServer { server, is_path, .. }: &LostServer) -> (String, String) {
    let effect = if *is_path {
        "requests take the other paths"
    } else {
        "requests wait for its reconnect-delay, and then fail until it is back"
    };
    let remedy = "start the server or repair the network; the log has the reason";
    (format!("{server} has no connection: {effect}"), remedy.into())
}

/// Failed requests; those of the class `transport` are no sign of a bad disk.
fn of_errors(requests: u64, transport: u64) -> (String, String) {
    let fact = format!("{requests} requests have failed since the volume was opened");
    if requests == transport {
        let fact = fact + ", because a connection to a server was lost";
        (fact, "the log has the times and the reasons".into())
    } else {
        (fact, "dmesg, and smartctl -a on the disk below: copy what can be read first".into())
    }
}

fn of_limit(Limit { party, saw, .. }: &Limit, when: &str) -> String {
    format!("{} limits {when}: {saw}", party.name())
}

/// A command for the control socket.
fn command(socket: &Path, name: &str, verb: &str, rest: &str) -> String {
    let of = match name {
        "" => String::new(),
        name => format!(" --export {}", quoted(name.as_ref())),
    };
    printable(format!("blockyard {verb} {}{of} {rest}", quoted(socket)).trim_end())
}

/// A fact that a newer library has found.
fn wordless(fact: &Fact) -> String {
    format!("{fact:?}")
}

/// A path for a command line, quoted if necessary.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@".contains(c);
    if text.chars().all(is_plain) && !text.is_empty() {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use blockyard::limit::Party;

    use super::*;

    fn at(path: &str, severity: Severity, fact: Fact) -> Finding {
        Finding { severity, subject: Subject::Path(path.into()), fact }
    }

    #[test]
    fn worst_comes_first_with_its_remedy() {
        let findings = [
            at("a.img", Severity::Note, Fact::NoTrim),
            at("a.img", Severity::Risky, Fact::NoKeyslot),
        ];
        let wanted = "risky  a.img: has no keyslot: no passphrase opens it\n       \
                      blockyard header restore, with a backup of the header\n\n\
                      note   a.img: TRIM is not passed down: what a file system frees stays taken \
                      below, and an SSD becomes slower\n       \
                      blockyard serve --allow-discards, if free areas may be revealed\n";
        assert_eq!(text(&findings), wanted);
        assert!(text(&[]).contains("nothing"));
        let hostile = at("a\u{1b}[2J", Severity::Note, Fact::NoTrim);
        assert!(text(&[hostile]).contains("a\\u{1b}[2J"));
    }

    #[test]
    fn facts_about_a_header_have_their_commands() {
        let plain =
            |cipher: &str| Fact::WeakCipher { cipher: cipher.into(), weakness: Weakness::PlainIv };
        for (fact, wanted, remedy) in [
            (
                Fact::SmallSectors { is_luks1: false },
                "512 bytes",
                "a backup, then: cryptsetup reencrypt --sector-size 4096 'my disk.img' (",
            ),
            (Fact::SmallSectors { is_luks1: true }, "512 bytes", "convert --type luks2 'my "),
            (
                Fact::KeyslotMemory {
                    keyslot: "3".into(),
                    needed_bytes: 1 << 30,
                    available_bytes: 512 << 20,
                },
                "keyslot 3 needs 1 GiB of memory, and 512 MiB",
                "blockyard key convert --key-slot 3 --pbkdf-memory 262144 ",
            ),
            (
                Fact::KeyslotIterations { keyslot: "3".into(), iterations: 4000, is_luks1: false },
                "4000 iterations",
                "blockyard key convert --key-slot 3 --pbkdf argon2id",
            ),
            (
                Fact::KeyslotIterations { keyslot: "3".into(), iterations: 4000, is_luks1: true },
                "4000 iterations",
                "blockyard key change --key-slot 3 'my",
            ),
            (plain("aes-cbc-plain"), "aes-cbc-plain has predictable IVs", "aes-xts-plain64"),
            (
                Fact::SlowCipher { cipher: "serpent-xts-plain64".into() },
                "no CPU instructions",
                "aes-xts-plain64",
            ),
            (Fact::ClearKey, "protection of this BitLocker", "manage-bde"),
            (Fact::InPartition { partitions: vec![3] }, "in a partition", "--partition 3"),
            (Fact::NoHeader { other: None }, "no LUKS header here", "--header"),
        ] {
            let words = Words::of(&at("my disk.img", Severity::Note, fact));
            assert!(words.fact.contains(wanted) && words.remedy.contains(remedy), "{words:?}");
        }
    }

    #[test]
    fn facts_about_a_place_have_their_commands() {
        let readable = |by_all| Fact::Readable { secret: Secret::Key, by_all };
        let disk = || "sdx".to_owned();
        for (fact, wanted, remedy) in [
            (readable(true), "everybody on this machine can read this key", "chmod go-rwx a.img"),
            (readable(false), "its group on this machine can read this key", "chmod"),
            (
                Fact::Sparse { len_bytes: 1 << 30, missing_bytes: 1 << 29, free_bytes: 1 << 20 },
                "512 MiB of it have no room yet, and 1 MiB are free",
                "fallocate --length 1073741824 a.img",
            ),
            (Fact::FileSystem(FileSystem::Network("NFS")), "it is on NFS", "nbd://"),
            (
                Fact::FewRequests { disk: disk(), nr_requests: 4, advised: 128 },
                "only 4 requests",
                "echo 128 > /sys/block/sdx/queue/nr_requests",
            ),
            (
                Fact::ShortRequests { disk: disk(), max_kib: 128, advised_kib: 1280 },
                "at most 128 KiB",
                "echo 1280 > /sys/block/sdx/queue/max_sectors_kb",
            ),
            (
                Fact::TrimDisabled { disk: disk(), max_bytes: 512 },
                "switched off",
                "echo 512 > /sys/block/sdx/queue/discard_max_bytes",
            ),
            (Fact::TrimUnsupported { disk: disk() }, "takes no TRIM", "lsblk --discard /dev/sdx"),
        ] {
            let words = Words::of(&at("a.img", Severity::Note, fact));
            assert!(words.fact.contains(wanted) && words.remedy.contains(remedy), "{words:?}");
        }
    }

    #[test]
    fn facts_about_an_export_have_commands_for_its_control_socket() {
        let limit = Limit { party: Party::Cipher, saw: "it is busy".into(), change: "AES".into() };
        let few = Fact::FewConnections {
            connections: 1.0,
            in_flight: 9.04,
            idle_cpus: 1.2,
            limit: limit.clone(),
        };
        for (fact, wanted, remedy) in [
            (Fact::Errors { requests: 3, transport: 1 }, "3 requests have failed", "dmesg"),
            (Fact::Errors { requests: 3, transport: 3 }, "3 requests have failed", "the log"),
            (
                Fact::Suspended { requests: 2 },
                "2 requests wait",
                "blockyard resume home.ctl --export 'my disk'",
            ),
            (Fact::KeyWiped, "key is wiped", "'my disk' key set"),
            (Fact::BuffersTaken { parts: 4 }, "4 parts", "fewer connections"),
            (Fact::PathMissing { parts: 4 }, "wait for a path", "reinstate_path"),
            (
                few,
                "1, with 9.0 requests in flight each, while 1.2 CPUs are idle; the cipher limits \
                 now: it is busy",
                "-connections 4",
            ),
            (Fact::Limited { limit, is_now: false }, "the cipher limits since the start", "AES"),
        ] {
            let subject = Subject::Export { socket: "home.ctl".into(), name: "my disk".into() };
            let words = Words::of(&Finding { severity: Severity::Slow, subject, fact });
            assert_eq!(words.place, "export \"my disk\"");
            assert!(words.fact.contains(wanted) && words.remedy.contains(remedy), "{words:?}");
        }
        let subject = Subject::Server("home.ctl".into());
        let fact = Fact::ConnectionsTaken { max: 16 };
        let words = Words::of(&Finding { severity: Severity::Slow, subject, fact });
        assert!(words.fact.contains("all 16") && words.remedy.ends_with("--max-connections 32"));
    }

    #[test]
    fn paths_are_quoted_for_a_shell() {
        assert_eq!(quoted("/srv/a-1.img".as_ref()), "/srv/a-1.img");
        assert_eq!(quoted("it's $x".as_ref()), r"'it'\''s $x'");
    }
}
