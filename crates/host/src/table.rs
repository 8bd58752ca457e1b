//! Tables with keys: the `crypt` line, and the parser of a table's text.
//!
//! ```text
//! <start> <len> crypt <cipher> <key> <iv_offset> <dev> <start> [<#opt> <opt>...]
//! ```
//! Source: `crypt_ctr` and `crypt_status` of `drivers/md/dm-crypt.c`. A key goes from its digits
//! straight into a [`SecretBytes`]. Keys in the kernel's keyring (`:64:logon:…`) cannot be read, so
//! they are refused.

use std::fmt;
use std::sync::Arc;

use blockyard_crypt::params::{CryptFlags, CryptParams};
use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::bio::Sector;
use blockyard_engine::dm::crypt::CryptSpec;
use blockyard_engine::dm::line::{self, MappedDevice, TableError};
use blockyard_engine::dm::registry::{
    Arguments, DeviceNeed, Keys, LineRange, Needs, Opened, TargetType, Use,
};
use blockyard_engine::dm::table::TargetSpec;
use blockyard_engine::dm::words::{
    announced, may_be_key, number, sector_size, shown, write_announced,
};

use crate::protect::PROTECT;

/// Greatest number of a key's digits. The longest keys are those of lmk: 65 of 32 bytes, 4160
/// digits.
const KEY_DIGITS_MAX: usize = 8192;

/// The target's type.
pub static CRYPT: TargetType = TargetType {
    name: "crypt",
    arguments: "<cipher> <key> <iv_offset> <device> <start> [<#opt> …]",
    parse: |args, line| Ok(Arc::new(parse_crypt(args, line)?)),
};

/// Arguments of a crypt line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CryptArguments {
    /// Path of the device or file.
    pub device: String,
    /// All other arguments; `len_sectors` is the line's.
    pub params: CryptParams,
}

impl Arguments for CryptArguments {
    /// Options come in the kernel's order, and only those that differ from the default.
    fn write(&self, keys: Keys, out: &mut dyn fmt::Write) -> fmt::Result {
        let Self { device, params } = self;
        write!(out, " {} ", params.cipher)?;
        let mut digits = |byte: u8| write!(out, "{byte:02x}");
        match keys {
            _ if params.key.is_empty() => out.write_char('-')?,
            Keys::Shown => params.key.as_slice().iter().try_for_each(|&byte| digits(byte))?,
            Keys::Hidden => params.key.as_slice().iter().try_for_each(|_| digits(0))?,
        }
        write!(out, " {} {device} {}", params.iv_offset_sectors, params.data_offset_sectors)?;
        write_announced(&options(params), out)
    }

    fn needs(&self, len: Sector) -> Needs<'_> {
        let Self { device, params } = self;
        let start = Sector(params.data_offset_sectors);
        let using = Use::Encrypted(params.sector_size_bytes);
        let devices = vec![DeviceNeed { path: device, start, len, using }];
        Needs { devices, cipher: Some(params), ..Needs::default() }
    }

    fn open(&self, opened: Opened) -> Result<Arc<dyn TargetSpec>, String> {
        let cipher = opened.cipher.expect("the line needs a cipher");
        Ok(Arc::new(CryptSpec {
            dev: opened.devs[0],
            start: Sector(self.params.data_offset_sectors),
            iv_offset: self.params.iv_offset_sectors,
            sector_size_bytes: self.params.sector_size_bytes,
            cipher: cipher.id,
            allow_discards: cipher.allow_discards,
            fuses_cipher: cipher.fuses,
            pipeline: cipher.pipeline,
        }))
    }
}

/// All targets that need no program: those of the engine, [`CRYPT`] and [`PROTECT`].
pub fn targets() -> impl Iterator<Item = &'static TargetType> {
    blockyard_engine::dm::registry::TARGETS.iter().copied().chain([&CRYPT, &PROTECT])
}

/// Parses the tables of one or several devices. `own` are the targets of the program.
///
/// # Errors
/// When the bytes are not text; the first wrong line; two targets with one name.
pub fn parse(
    text: &SecretBytes,
    own: &[&'static TargetType],
) -> Result<Vec<MappedDevice>, TableError> {
    let text = std::str::from_utf8(text.as_slice())
        .map_err(|_| TableError { line: 0, problem: "the table is not UTF-8 text".into() })?;
    let own: Vec<&TargetType> = [&CRYPT, &PROTECT].into_iter().chain(own.iter().copied()).collect();
    line::parse(text, &own)
}

fn parse_crypt(args: &[&str], line: LineRange) -> Result<CryptArguments, String> {
    let [cipher, key, iv_offset, device, offset, options @ ..] = args else {
        return Err(CRYPT.takes());
    };
    if may_be_key(cipher) {
        return Err(format!("the cipher's word may be a key; {}", CRYPT.takes()));
    }
    let mut params = CryptParams {
        cipher: (*cipher).into(),
        key: parse_key(key)?,
        iv_offset_sectors: number(iv_offset, "IV offset")?,
        data_offset_sectors: number(offset, "start sector on the device")?,
        len_sectors: Some(line.len),
        sector_size_bytes: 512,
        iv_large_sectors: false,
        flags: CryptFlags::default(),
    };
    parse_options(options, &mut params)?;
    check_alignment(&params, line)?;
    Ok(CryptArguments { device: (*device).into(), params })
}

fn parse_options(options: &[&str], params: &mut CryptParams) -> Result<(), String> {
    for option in announced(options, "options")? {
        let flags = &mut params.flags;
        match option.to_ascii_lowercase().as_str() {
            "allow_discards" => flags.allow_discards = true,
            "same_cpu_crypt" => flags.same_cpu_crypt = true,
            "submit_from_crypt_cpus" => flags.submit_from_crypt_cpus = true,
            "high_priority" => flags.high_priority = true,
            "no_read_workqueue" => flags.no_read_workqueue = true,
            "no_write_workqueue" => flags.no_write_workqueue = true,
            "iv_large_sectors" => params.iv_large_sectors = true,
            other => match other.split_once(':') {
                Some(("sector_size", size)) => {
                    params.sector_size_bytes = sector_size(size, "sector_size")?;
                }
                Some(("integrity" | "integrity_key_size", _)) => {
                    return Err(format!(
                        "option `{}` is not supported: authenticated encryption needs the \
                         kernel's dm-integrity below it",
                        shown(option)
                    ));
                }
                _ => return Err(format!("option `{}` is unknown", shown(option))),
            },
        }
    }
    Ok(())
}

/// The words of the options.
fn options(params: &CryptParams) -> Vec<String> {
    let flags = &params.flags;
    let named = [
        (flags.allow_discards, "allow_discards"),
        (flags.same_cpu_crypt, "same_cpu_crypt"),
        (flags.high_priority, "high_priority"),
        (flags.submit_from_crypt_cpus, "submit_from_crypt_cpus"),
        (flags.no_read_workqueue, "no_read_workqueue"),
        (flags.no_write_workqueue, "no_write_workqueue"),
    ];
    let set = named.into_iter().filter(|(is_set, _)| *is_set);
    let mut options: Vec<String> = set.map(|(_, name)| name.into()).collect();
    if params.sector_size_bytes != 512 {
        options.push(format!("sector_size:{}", params.sector_size_bytes));
    }
    if params.iv_large_sectors {
        options.push("iv_large_sectors".into());
    }
    options
}

fn check_alignment(params: &CryptParams, line: LineRange) -> Result<(), String> {
    let LineRange { start, len } = line;
    let sectors = u64::from(params.sector_size_bytes >> 9);
    let aligned = [("start", start), ("length", len), ("IV offset", params.iv_offset_sectors)];
    for (what, value) in aligned {
        if !value.is_multiple_of(sectors) {
            return Err(format!(
                "{what} {value} is not a multiple of the sector size ({sectors} sectors)"
            ));
        }
    }
    if params.data_offset_sectors.checked_add(len).is_none_or(|end| end > u64::MAX >> 9) {
        return Err("the ciphertext would end after 2^64 bytes".into());
    }
    Ok(())
}

/// Parses hexadecimal digits, or `-` for an empty key.
///
/// # Errors
/// The problem, without a quotation of the key.
pub fn parse_key(text: &str) -> Result<SecretBytes, String> {
    if text.starts_with(':') {
        return Err(
            "the key is in the kernel's keyring, where it cannot be read; write the table \
                    with the key in hex, or open the LUKS volume itself"
                .into(),
        );
    }
    let text = if text == "-" { "" } else { text };
    if !text.len().is_multiple_of(2) || text.len() > KEY_DIGITS_MAX {
        return Err(format!(
            "the key is not an even number of at most {KEY_DIGITS_MAX} hex digits"
        ));
    }
    let mut key = SecretBytes::zeroed(text.len() / 2);
    for (byte, pair) in key.as_mut_slice().iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
            return Err("the key holds something that is not a hex digit".into());
        };
        *byte = (high << 4 | low) as u8;
    }
    Ok(key)
}

#[cfg(test)]
mod tests;
