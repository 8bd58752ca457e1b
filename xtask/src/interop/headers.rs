//! Modified headers: LUKS2's binary header and JSON, and LUKS1's fixed header, parsed, changed, and
//! written with a correct checksum, so that a reader must judge the content.
//!
//! Layout: the LUKS2 on-disk format specification, section 2; the LUKS1 one, section 2.

use crate::cases::Cases;
use crate::lab::Lab;
use crate::tools;
use crate::volume::{Maker, Recipe, Volume};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;

/// Length of the binary header before the JSON area.
const BINARY_BYTES: usize = 4096;

/// Offset of the whole header's checksum, which is computed with zeroes in its place.
const CHECKSUM_AT: usize = 448;
const CHECKSUM_BYTES: usize = 64;

pub(crate) fn run(cases: &mut Cases, lab: &Lab) {
    cases.run("damaged primary header: opens by the second and says so", || damaged(lab));
    cases.run("damaged primary header: repaired on request only", || repaired(lab));
    cases.run("the newest of two valid headers wins", || newest(lab));
}

/// A LUKS2 image in memory.
pub(crate) struct Luks2 {
    pub(crate) image: Vec<u8>,
    header_bytes: usize,
}

impl Luks2 {
    pub(crate) fn read(path: &Path) -> Result<Luks2> {
        Luks2::parse(fs::read(path)?).with_context(|| path.display().to_string())
    }

    pub(crate) fn parse(image: Vec<u8>) -> Result<Luks2> {
        ensure!(image.starts_with(b"LUKS\xba\xbe\0\x02"), "not LUKS2");
        let header_bytes = u64::from_be_bytes(image[8..16].try_into()?);
        Ok(Luks2 { image, header_bytes: usize::try_from(header_bytes)? })
    }

    pub(crate) fn json(&self) -> Result<Value> {
        let area = &self.image[BINARY_BYTES..self.header_bytes];
        let len = area.iter().position(|byte| *byte == 0).unwrap_or(area.len());
        serde_json::from_slice(&area[..len]).context("the header's JSON")
    }

    /// Puts this text into both copies.
    pub(crate) fn set_text(&mut self, text: &[u8]) {
        for copy in 0..2 {
            self.set_copy(copy, text, None);
        }
    }

    pub(crate) fn set_json(&mut self, json: &Value) {
        self.set_text(json.to_string().as_bytes());
    }

    /// Puts this text into one copy; a text that is too long is truncated and no longer JSON.
    fn set_copy(&mut self, copy: usize, text: &[u8], sequence: Option<u64>) {
        let at = copy * self.header_bytes;
        let room = self.header_bytes - BINARY_BYTES;
        let len = text.len().min(room);
        let area = &mut self.image[at + BINARY_BYTES..at + self.header_bytes];
        area.fill(0);
        area[..len].copy_from_slice(&text[..len]);
        if let Some(sequence) = sequence {
            self.image[at + 16..at + 24].copy_from_slice(&sequence.to_be_bytes());
        }
        self.seal(copy);
    }

    /// Changes a byte of the binary header of one copy.
    pub(crate) fn set_byte(&mut self, copy: usize, at: usize, value: u8, is_sealed: bool) {
        self.image[copy * self.header_bytes + at] = value;
        if is_sealed {
            self.seal(copy);
        }
    }

    fn seal(&mut self, copy: usize) {
        let header = &mut self.image[copy * self.header_bytes..][..self.header_bytes];
        header[CHECKSUM_AT..CHECKSUM_AT + CHECKSUM_BYTES].fill(0);
        let sum = Sha256::digest(&*header);
        header[CHECKSUM_AT..CHECKSUM_AT + sum.len()].copy_from_slice(&sum);
    }

    /// Flips bits in the JSON of one copy and leaves its checksum.
    fn damage(&mut self, copy: usize) {
        let at = copy * self.header_bytes + BINARY_BYTES + 10;
        self.image[at] ^= 0x55;
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        Ok(fs::write(path, &self.image)?)
    }
}

fn volume(lab: &Lab) -> Result<Volume> {
    Recipe { name: "headers", maker: Maker::Cryptsetup, options: "--type luks2" }.make(lab)
}

fn damaged(lab: &Lab) -> Result<String> {
    let volume = volume(lab)?;
    let mut luks = Luks2::read(&volume.image)?;
    luks.damage(0);
    luks.write(&volume.image)?;
    let server = volume.serve(lab, &[])?;
    let log = server.log();
    server.stop()?;
    ensure!(log.to_lowercase().contains("header"), "the log does not mention the header: {log:?}");
    ensure!(fs::read(&volume.image)?[..64 << 10] == luks.image[..64 << 10], "repaired unasked");
    luks.damage(1);
    luks.write(&volume.image)?;
    let info = tools::output(lab.blockyard(&["info"]).arg(&volume.image))?;
    ensure!(!info.status.success(), "both copies are damaged, and info succeeds");
    Ok(log.lines().next().unwrap_or_default().to_owned())
}

fn repaired(lab: &Lab) -> Result<String> {
    let volume = volume(lab)?;
    let whole = Luks2::read(&volume.image)?;
    for copy in 0..2 {
        let mut luks = Luks2::read(&volume.image)?;
        luks.damage(copy);
        luks.write(&volume.image)?;
        tools::run(lab.blockyard(&["repair", "-q"]).arg(&volume.image))?;
        let now = Luks2::read(&volume.image)?;
        ensure!(now.json()? == whole.json()?, "copy {copy}: other metadata than before");
        let mut dump = tools::tool("cryptsetup");
        let said = tools::run(dump.args(["luksDump", "--debug"]).arg(&volume.image))?;
        let said = tools::text(&said.stdout);
        ensure!(!said.contains("checksum mismatch"), "copy {copy}: cryptsetup sees a mismatch");
    }
    volume.serve(lab, &[])?.stop()?;
    Ok(String::new())
}

/// Gives the second copy a higher sequence id and another label in its JSON, which must then count.
fn newest(lab: &Lab) -> Result<String> {
    let volume = volume(lab)?;
    let mut luks = Luks2::read(&volume.image)?;
    let mut json = luks.json()?;
    json["tokens"]["5"] = serde_json::json!({"type": "newest-copy-marker", "keyslots": []});
    luks.set_copy(1, json.to_string().as_bytes(), Some(1000));
    luks.write(&volume.image)?;
    let text = tools::read(lab.blockyard(&["info", "--json"]).arg(&volume.image))?;
    ensure!(text.contains("newest-copy-marker"), "info shows the older copy: {text}");
    Ok(String::new())
}
