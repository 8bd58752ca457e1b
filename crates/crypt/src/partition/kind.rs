//! Names of partition types: the usual ones of the UAPI group's Discoverable Partitions
//! Specification, of Microsoft, and of an MBR.

use uuid::{Uuid, uuid};

const GUIDS: &[(Uuid, &str)] = &[
    (uuid!("ca7d7ccb-63ed-4c53-861c-1742536059cc"), "Linux LUKS"),
    (uuid!("0fc63daf-8483-4772-8e79-3d69d8477de4"), "Linux data"),
    (uuid!("4f68bce3-e8cd-4db1-96e7-fbcaf984b709"), "Linux root (x86-64)"),
    (uuid!("b921b045-1df0-41c3-af44-4c6f280d3fae"), "Linux root (ARM64)"),
    (uuid!("933ac7e1-2eb4-4f13-b844-0e14e2aef915"), "Linux home"),
    (uuid!("3b8f8425-20e0-4f3b-907f-1a25a76f98e8"), "Linux server data"),
    (uuid!("bc13c2ff-59e6-4262-a352-b275fd6f7172"), "Linux extended boot"),
    (uuid!("0657fd6d-a4ab-43c4-84e5-0933c84b4f4f"), "Linux swap"),
    (uuid!("e6d6d379-f507-44c2-a23c-238f2a3df928"), "Linux LVM"),
    (uuid!("a19d880f-05fc-4d3b-a006-743f0f84911e"), "Linux RAID"),
    (uuid!("c12a7328-f81f-11d2-ba4b-00a0c93ec93b"), "EFI system"),
    (uuid!("21686148-6449-6e6f-744e-656564454649"), "BIOS boot"),
    (uuid!("ebd0a0a2-b9e5-4433-87c0-68b6b72699c7"), "Microsoft basic data"),
    (uuid!("e3c9e316-0b5c-4db8-817d-f92df00215ae"), "Microsoft reserved"),
    (uuid!("de94bba4-06d1-4d40-a16a-bfd50179d6ac"), "Windows recovery"),
];

const BYTES: &[(u8, &str)] = &[
    (0x01, "FAT12"),
    (0x04, "FAT16"),
    (0x06, "FAT16"),
    (0x07, "NTFS or exFAT"),
    (0x0b, "FAT32"),
    (0x0c, "FAT32"),
    (0x0e, "FAT16"),
    (0x27, "Windows recovery"),
    (0x82, "Linux swap"),
    (0x83, "Linux data"),
    (0x8e, "Linux LVM"),
    (0xe8, "Linux LUKS"),
    (0xef, "EFI system"),
    (0xfd, "Linux RAID"),
];

/// The name of a GPT type, or its GUID.
pub(super) fn of_guid(guid: Uuid) -> String {
    let known = GUIDS.iter().find(|(known, _)| *known == guid);
    known.map_or_else(|| guid.to_string(), |(_, name)| (*name).to_owned())
}

/// The name of an MBR type, or its number.
pub(super) fn of_byte(byte: u8) -> String {
    let known = BYTES.iter().find(|(known, _)| *known == byte);
    known.map_or_else(|| format!("type 0x{byte:02x}"), |(_, name)| (*name).to_owned())
}
