//! A configuration for `serve --config`, from a volume's options and the best settings.

use std::path::Path;

use blockyard::tune::Settings;
use serde::Serialize;

use super::settings::options;
use crate::args::{TcryptArgs, VolumeArgs, VolumeType};
use crate::failure::{Failure, printable};

#[derive(Serialize)]
struct File {
    #[serde(skip_serializing_if = "Option::is_none")]
    threads: Option<u16>,
    exports: std::collections::BTreeMap<String, Export>,
}

/// An export, with a configuration's keys (`crate::config`).
#[derive(Default, Serialize)]
struct Export {
    #[serde(skip_serializing_if = "Option::is_none")]
    volume: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<String>,
    #[serde(flatten)]
    tcrypt: Tcrypt,
    #[serde(flatten)]
    luks: Luks,
    #[serde(flatten)]
    key_file: KeyFile,
    #[serde(flatten)]
    plain: Plain,
    #[serde(skip_serializing_if = "is_false")]
    direct: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pipeline: Option<String>,
    #[serde(flatten)]
    scheduling: Scheduling,
}

/// Keys of the device's queue.
#[derive(Default, Serialize)]
struct Scheduling {
    #[serde(skip_serializing_if = "Option::is_none")]
    elevator: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_depth: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_sectors: Option<u32>,
}

/// Keys of a LUKS volume.
#[derive(Default, Serialize)]
struct Luks {
    #[serde(skip_serializing_if = "Option::is_none")]
    header: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_slot: Option<u32>,
}

/// Keys of a file with the passphrase or key.
#[derive(Default, Serialize)]
struct KeyFile {
    #[serde(skip_serializing_if = "Option::is_none")]
    key_file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keyfile_offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keyfile_size: Option<u64>,
}

/// Keys of a plain volume.
#[derive(Default, Serialize)]
struct Plain {
    #[serde(skip_serializing_if = "Option::is_none")]
    cipher: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    skip: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sector_size: Option<u32>,
    #[serde(skip_serializing_if = "is_false")]
    iv_large_sectors: bool,
}

/// Keys of a TrueCrypt or VeraCrypt volume.
#[derive(Default, Serialize)]
struct Tcrypt {
    #[serde(skip_serializing_if = "is_false")]
    tcrypt_hidden: bool,
    #[serde(skip_serializing_if = "is_false")]
    tcrypt_system: bool,
    #[serde(skip_serializing_if = "is_false")]
    tcrypt_backup: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tcrypt_keyfiles: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    veracrypt_pim: Option<u32>,
    #[serde(skip_serializing_if = "is_false")]
    protect_hidden: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    protect_hidden_key_file: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    protect_hidden_tcrypt_keyfiles: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protect_hidden_veracrypt_pim: Option<u32>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// The text of the file, with `heading` at the start as a comment.
pub(crate) fn text(
    volume: &VolumeArgs,
    settings: &Settings,
    heading: &[String],
) -> Result<String, Failure> {
    let path = volume.table.as_ref().or(volume.volume.as_ref());
    let path = path.expect("a volume that was opened has a name");
    let name = path.file_stem().map_or_else(|| "volume".into(), |name| name.to_string_lossy());
    let mut export = described(volume);
    export.direct |= settings.direct;
    export.scheduling.queue_depth = settings.queue_depth;
    export.scheduling.max_sectors = settings.max_sectors;
    export.scheduling.elevator = settings.elevator.as_ref().map(ToString::to_string);
    let options = options(settings);
    export.pipeline = options.into_iter().find(|(name, _)| *name == "--pipeline").map(|(_, v)| v);
    let exports = [(name.into_owned(), export)].into();
    let file = File { threads: settings.threads, exports };
    let body = toml::to_string(&file)
        .map_err(|error| Failure::failed(format!("cannot write the configuration: {error}")))?;
    let heading: String = heading.iter().map(|line| format!("# {}\n", printable(line))).collect();
    Ok(heading + &body)
}

/// The volume as on the command line.
fn described(volume: &VolumeArgs) -> Export {
    let path = |path: &std::path::PathBuf| absolute(path);
    let plain = &volume.plain;
    Export {
        volume: volume.volume.as_ref().map(path),
        table: volume.table.as_ref().map(path),
        kind: volume.kind.map(|kind| match kind {
            VolumeType::Luks => "luks",
            VolumeType::Luks1 => "luks1",
            VolumeType::Luks2 => "luks2",
            VolumeType::Tcrypt => "tcrypt",
            VolumeType::Bitlk => "bitlk",
            VolumeType::Plain => "plain",
        }),
        partition: volume.partition.partition.clone(),
        tcrypt: described_tcrypt(&volume.tcrypt),
        luks: Luks { header: volume.header.header.as_ref().map(path), key_slot: volume.key_slot },
        key_file: KeyFile {
            key_file: volume.key.key_file.as_ref().filter(|file| file.as_os_str() != "-").map(path),
            keyfile_offset: Some(volume.key.keyfile_offset).filter(|offset| *offset > 0),
            keyfile_size: volume.key.keyfile_size,
        },
        plain: Plain {
            cipher: plain.cipher.clone(),
            key_size: plain.key_size,
            hash: plain.hash.clone(),
            offset: plain.offset,
            skip: plain.skip,
            size: plain.size,
            sector_size: plain.sector_size,
            iv_large_sectors: plain.iv_large_sectors,
        },
        direct: volume.direct,
        ..Export::default()
    }
}

fn described_tcrypt(tcrypt: &TcryptArgs) -> Tcrypt {
    let path = |path: &std::path::PathBuf| absolute(path);
    let protect = &tcrypt.protect;
    let hidden_key = protect.protect_hidden_key_file.as_ref();
    Tcrypt {
        tcrypt_hidden: tcrypt.tcrypt_hidden,
        tcrypt_system: tcrypt.tcrypt_system,
        tcrypt_backup: tcrypt.tcrypt_backup,
        tcrypt_keyfiles: tcrypt.tcrypt_keyfile.iter().map(path).collect(),
        veracrypt_pim: tcrypt.veracrypt_pim,
        protect_hidden: protect.protect_hidden,
        protect_hidden_key_file: hidden_key.filter(|file| file.as_os_str() != "-").map(path),
        protect_hidden_tcrypt_keyfiles: protect
            .protect_hidden_tcrypt_keyfile
            .iter()
            .map(path)
            .collect(),
        protect_hidden_veracrypt_pim: protect.protect_hidden_veracrypt_pim,
    }
}

/// A path that is valid in every folder; a URI is unchanged.
fn absolute(path: &Path) -> String {
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    absolute.display().to_string()
}

#[cfg(test)]
mod tests {
    use blockyard::PipelineChoice;
    use blockyard_engine::elevator::ElevatorSpec;
    use clap::Parser;

    use super::*;
    use crate::config::Config;

    #[derive(Parser)]
    #[command(disable_help_flag = true)]
    struct Words {
        #[command(flatten)]
        volume: VolumeArgs,
    }

    #[test]
    fn configuration_is_what_serve_reads() {
        let words = ["x", "disk.img", "--type", "plain", "-c", "aes-xts-plain64", "-s", "512"];
        let volume = Words::parse_from(words.into_iter().chain(["-d", "key", "-l", "64"])).volume;
        let settings = Settings {
            direct: true,
            pipeline: PipelineChoice::parse("linux-today").unwrap(),
            threads: Some(2),
            elevator: Some(ElevatorSpec::parse("deadline,fifo_batch=4").unwrap()),
            queue_depth: Some(64),
            max_sectors: Some(256),
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text(&volume, &settings, &["of a test".into()]).unwrap())
            .unwrap();
        let config = Config::read(file.path()).unwrap();
        let export = &config.exports[0];
        assert_eq!((config.threads, export.name.as_str()), (Some(2), "disk"));
        assert!(export.volume.direct && export.pipeline == settings.pipeline);
        assert_eq!(export.scheduling.elevator, settings.elevator);
        let numbers = (export.scheduling.queue_depth, export.scheduling.max_sectors);
        assert_eq!(numbers, (Some(64), 256));
    }
}
