//! A target of the program's own: `mirror` keeps two devices equal, and reads the second where the
//! first fails. `cargo run --example own_target -- a.img b.img`
//!
//! `docs/targets/adding.md` explains the steps; their numbers are here too.

use std::fmt;
use std::sync::Arc;

use blockyard::target::{
    Arguments, BlkStatus, DevId, DeviceArea, Flushes, Keys, Mapped, Needs, Op, Opened, Owner, Part,
    Reserve, Sector, Slab, Sqe, Target, TargetCx, TargetFacts, TargetSpec, TargetType, Token,
    words,
};
use blockyard::{Error, SecretBytes, Volume};

// Step 1: the name, and the parser of the arguments.

static MIRROR: TargetType = TargetType {
    name: "mirror",
    arguments: "<device> <start> <device> <start>",
    parse: |args, line| {
        let [one, one_start, two, two_start] = args else { return Err(MIRROR.takes()) };
        let areas = [
            words::device_area(one, one_start, line.len)?,
            words::device_area(two, two_start, line.len)?,
        ];
        Ok(Arc::new(MirrorSpec { areas }))
    },
};

/// A line: its devices are paths, and numbers once they are open.
#[derive(Clone, Debug)]
struct MirrorSpec<D> {
    areas: [DeviceArea<D>; 2],
}

// Step 2: the text of the arguments, and the things that the world opens for them.

impl Arguments for MirrorSpec<String> {
    fn write(&self, _: Keys, out: &mut dyn fmt::Write) -> fmt::Result {
        self.areas.iter().try_for_each(|area| write!(out, " {area}"))
    }

    fn needs(&self, len: Sector) -> Needs<'_> {
        Needs::of(&self.areas, len)
    }

    fn open(&self, opened: Opened) -> Result<Arc<dyn TargetSpec>, String> {
        let [one, two] = &self.areas;
        Ok(Arc::new(MirrorSpec { areas: [opened.area(0, one), opened.area(1, two)] }))
    }
}

// Step 3: the facts, and a target for each shard.

impl TargetSpec for MirrorSpec<DevId> {
    fn facts(&self) -> TargetFacts {
        let devices = self.areas.iter().map(|area| area.dev).collect();
        TargetFacts::new(Flushes::To(devices))
    }

    fn build(&self, number: u16, _: Reserve) -> Box<dyn Target> {
        Box::new(Mirror { areas: self.areas, number, ios: Slab::default() })
    }
}

// Step 4: the data path.

struct Mirror {
    areas: [DeviceArea<DevId>; 2],
    /// Its number in the table, for tokens.
    number: u16,
    /// Parts in flight, by the index in their tokens.
    ios: Slab<MirrorIo>,
}

struct MirrorIo {
    part: Part,
    /// Number of devices that have not answered.
    pending: usize,
    /// The worst answer so far.
    status: BlkStatus,
    /// Whether a read may still try the second device.
    may_retry: bool,
}

impl Mirror {
    fn push(&self, index: u32, part: &Part, area: DeviceArea<DevId>, cx: &mut TargetCx<'_>) {
        let token = Token { owner: Owner::Target(self.number), index };
        let op = part.at(area.dev, area.start + part.sector);
        cx.push(Sqe { token, op, linked: false, origin: part.origin });
    }
}

impl Target for Mirror {
    fn map(&mut self, part: Part, cx: &mut TargetCx<'_>) -> Mapped {
        let may_retry = part.op == Op::Read;
        let pending = if may_retry { 1 } else { self.areas.len() };
        let io = MirrorIo { part, pending, status: BlkStatus::Ok, may_retry };
        let index = self.ios.insert(io);
        for area in self.areas.into_iter().take(pending) {
            self.push(index, &part, area, cx);
        }
        Mapped::Submitted
    }

    fn on_cqe(&mut self, index: u32, status: BlkStatus, cx: &mut TargetCx<'_>) {
        let io = self.ios.at(index);
        if status != BlkStatus::Ok && io.may_retry {
            io.may_retry = false;
            let part = io.part;
            return self.push(index, &part, self.areas[1], cx);
        }
        if status != BlkStatus::Ok {
            io.status = status;
        }
        io.pending -= 1;
        if io.pending == 0 {
            let io = self.ios.remove(index);
            cx.end(io.part.index, io.status);
        }
    }

    fn max_io(&self, _: Op, _: Sector) -> Sector {
        Sector(u64::MAX)
    }

    fn is_idle(&self) -> bool {
        self.ios.is_empty()
    }
}

// Step 5: a volume with the target.

fn open(table: &str) -> Result<Volume, Error> {
    let text = SecretBytes::copy_of(table.as_bytes());
    Volume::options().target(&MIRROR).table_text(text).open("mirror")
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [one, two] = &words[..] else { return Err("usage: IMAGE IMAGE".into()) };
    let sectors = std::fs::metadata(one)?.len().min(std::fs::metadata(two)?.len()) / 512;
    let volume = open(&format!("0 {sectors} mirror {one} 0 {two} 0"))?;
    volume.write_all_at(b"on both", 0)?;
    volume.flush()?;
    println!("the first bytes of {one} and {two} are equal now");
    Ok(())
}

// Step 6: tests. A line of `error` is a device that fails.

#[cfg(test)]
mod tests {
    use super::*;

    const SECTORS: u64 = 2048;

    #[test]
    fn write_is_on_both_devices() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["one", "two"].map(|name| dir.path().join(name).display().to_string());
        for path in &paths {
            std::fs::File::create(path).unwrap().set_len(SECTORS * 512).unwrap();
        }
        let [one, two] = &paths;
        let volume = open(&format!("0 {} mirror {one} 8 {two} 0", SECTORS - 8)).unwrap();
        let bytes: Vec<u8> = (0..100_000_u32).map(|byte| byte as u8 | 1).collect();
        volume.write_all_at(&bytes, 700).unwrap();
        volume.flush().unwrap();
        let [one, two] = paths.each_ref().map(|path| std::fs::read(path).unwrap());
        assert_eq!(&one[4096..][..500_000], &two[..500_000]);
        assert_eq!(&two[700..][..bytes.len()], &bytes);
    }

    #[test]
    fn failed_device_is_not_seen_by_readers_but_by_writers() {
        let text = "bad: 0 64 error\ngood: 0 64 zero\n\
                    top: 0 64 mirror /dev/mapper/bad 0 /dev/mapper/good 0";
        let volume = open(text).unwrap();
        let mut bytes = [1; 4096];
        volume.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [0; 4096]);
        assert!(volume.write_all_at(&bytes, 0).is_err());
    }

    #[test]
    fn wrong_line_names_the_syntax() {
        let problem = open("0 64 mirror /a 0").unwrap_err().to_string();
        assert!(problem.contains("mirror takes `<device> <start> <device> <start>`"), "{problem}");
    }
}
