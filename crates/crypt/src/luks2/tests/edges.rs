//! Headers at the edge of what the format allows, and just beyond it.

use super::*;

#[test]
fn device_that_is_shorter_than_its_header_is_refused_when_it_is_read() {
    let device = &volume().0;
    read(&device[..(1 << 20) - (224 << 10)]).unwrap();
    for len in [(1 << 20) - (224 << 10) - 1, 40_000] {
        let error = read(&device[..len]).unwrap_err();
        assert!(error.contains("truncated") && error.contains(&len.to_string()), "{error}");
    }
}

#[test]
fn stale_second_copy_elsewhere_is_none_of_a_header_whose_first_copy_is_intact() {
    let (mut device, _) = volume().clone();
    let luks::Header::Luks2(old) = &volume().1.header else { unreachable!() };
    let mut document = document();
    document["config"]["json_size"] = json!("61440");
    document["keyslots"]["0"]["area"]["offset"] = json!("131072");
    let mut area = document.to_string().into_bytes();
    area.resize(61_440, 0);
    let binary = Binary { hdr_len_bytes: 0x1_0000, seqid: 9, ..old.binary.clone() };
    write_copy(&mut device, Copy::Secondary, &binary, &area);
    device[HDR_LEN + 4096] ^= 1;
    let (header, notices) = Header::read(&device).unwrap();
    assert_eq!(header.seqid(), 1);
    assert!(matches!(notices[..], [Notice::DamagedCopy { copy: Copy::Secondary, .. }]));
    // Without the first copy it is all that is left.
    device[4096] ^= 1;
    assert_eq!(Header::read(&device).unwrap().0.seqid(), 9);
}

#[test]
fn requirement_is_named_where_one_copy_is_read() {
    let mut document = changed("/config/requirements", json!({"mandatory": ["warp-drive"]}));
    document["segments"]["0"]["sector_size"] = json!("warped");
    let device = device_with(&document);
    for copy in [Copy::Primary, Copy::Secondary] {
        let error = Header::read_copy(&device, copy).unwrap_err();
        assert!(matches!(error, Error::Requirement(_)), "{error}");
    }
}

#[test]
fn backups_of_segments_come_last_and_may_overlap_the_others() {
    let backup = json!({"type": "linear", "offset": "1048576", "size": "dynamic",
                        "flags": ["backup-previous"]});
    let mut document = changed("/segments/1", backup);
    read(&device_with(&document)).unwrap();
    document["segments"]["2"] = document["segments"]["0"].clone();
    document["digests"]["0"]["segments"] = json!(["0", "2"]);
    let error = read(&device_with(&document)).unwrap_err();
    assert!(error.contains("segments.2: ") && error.contains("backup"), "{error}");
}

#[test]
fn keyslot_area_that_just_holds_its_key_opens() {
    let device = device_with(&changed("/keyslots/0/area", area("32768", "256000")));
    unlock(&device, &UnlockOptions::default()).unwrap();
    let less = device_with(&changed("/keyslots/0/area", area("32768", "255999")));
    assert!(unlock(&less, &UnlockOptions::default()).is_err());
}
