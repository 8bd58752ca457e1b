//! Each command on keys and headers, and each format: at its end its memory, its output and the
//! files that it wrote hold no secret.

use super::{Subject, memory};
use crate::cases::Cases;
use crate::tools::{self, tool};
use crate::volume::{luks_format, sparse};
use anyhow::{Result, ensure};
use std::fs;

/// The passphrase that the commands add.
pub(super) const SECOND: &str = "second-passphrase-8e1d40c7-of-hygiene";
/// The passphrase that replaces it.
pub(super) const THIRD: &str = "third-passphrase-27fa96b3-of-hygiene";

/// The commands, in an order in which each can run after the others. COST is the cost of a new
/// keyslot. `two.img` is LUKS2, and `one.img` LUKS1.
const COMMANDS: &[&str] = &[
    "key add two.img -d pass --new-keyfile second COST",
    "key change two.img -d second --new-keyfile third COST",
    "key add two.img --volume-key-file volume.key --new-keyfile second COST",
    "key convert two.img -d third COST",
    "key priority two.img -S 1 --priority prefer",
    "key list two.img",
    "key kill two.img 2 -d pass",
    "key remove two.img -d third",
    "token import two.img --json-file recovery.json",
    "token list two.img",
    "token export two.img --token-id 0",
    "token remove two.img --token-id 0",
    "header label two.img --label hygiene",
    "header uuid two.img --uuid 0f35c1f2-6c2f-4c3b-9d4c-6f6a3f0b9d11",
    "header flags two.img allow-discards",
    "header check two.img",
    "resize two.img --device-size 4M -q",
    "header backup two.img -o backup",
    "erase two.img -q",
    "header restore two.img -i backup -q",
    "info two.img",
    "table two.img -d pass",
    "load two.img -d pass -i plain --allow-short",
    "key add one.img -d pass --new-keyfile second --pbkdf-force-iterations 1000",
    "key change one.img -d second --new-keyfile third --pbkdf-force-iterations 1000",
    "header convert one.img --type luks2 -q",
    "header convert one.img --type luks1 -q",
    "header wipe one.img -q",
    "format one.img -d pass -q COST",
    "dump veracrypt.img --type tcrypt --veracrypt-pim 1 -d pass --force -o plain",
    "dump bitlocker.img -d pass --force -o plain",
    "info bitlocker.img",
];
const COST: &str = "--pbkdf-memory 65536 --pbkdf-force-iterations 4";

pub(super) fn run(cases: &mut Cases, subject: &Subject) {
    let name = |command: &str| {
        format!("no secret is left at the end of: {}", command.replace(" COST", ""))
    };
    if !COMMANDS.iter().any(|command| cases.wants(&name(command))) {
        return;
    }
    if let Err(error) = make(subject) {
        return cases.verdict("no secret is left: the volumes", Err(error));
    }
    for command in COMMANDS {
        cases.run(&name(command), || at_exit(subject, command));
    }
    cases.run("volumes and backups hold no secret in clear text", || written(subject));
}

fn make(subject: &Subject) -> Result<()> {
    let lab = subject.lab;
    lab.write("second", SECOND)?;
    lab.write("third", THIRD)?;
    lab.write("volume.key", &subject.key)?;
    lab.write("plain", [7; 4096])?;
    lab.write("recovery.json", r#"{"type":"systemd-recovery","keyslots":["0"]}"#)?;
    fs::copy(&subject.image, lab.path("two.img"))?;
    let one = lab.path("one.img");
    sparse(&one, 32 << 20)?;
    let key = lab.path("volume.key");
    let options = format!("--type luks1 --key-size 512 --volume-key-file {}", key.display());
    luks_format(&one, &lab.pass(), &options)?;
    for image in ["two.img", "one.img"] {
        lab.give(&lab.path(image))?;
    }
    for image in ["veracrypt.img", "bitlocker.img"] {
        let packed = tools::root().join(format!("testdata/volumes/img/own-{image}.xz"));
        lab.write(image, tools::run(tool("xz").arg("-dc").arg(packed))?.stdout)?;
    }
    Ok(())
}

fn at_exit(subject: &Subject, command: &str) -> Result<String> {
    let command = command.replace("COST", COST);
    let words: Vec<_> = command.split_whitespace().map(str::to_owned).collect();
    subject.search_at_exit(&words, None)
}

fn written(subject: &Subject) -> Result<String> {
    for name in ["two.img", "one.img", "backup"] {
        let found = memory::search(&fs::read(subject.lab.path(name))?, &subject.needles());
        ensure!(found.is_empty(), "{name} contains the {}", found[0].0);
    }
    Ok(String::new())
}
