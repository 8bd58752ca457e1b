//! The client with simple servers: correct, refusing and broken ones.

use std::os::unix::net::UnixStream;
use std::thread;

use super::*;

/// The answers of a scripted server.
struct Script {
    greeting: Vec<u8>,
    /// The answer to each option in turn.
    answers: Vec<Vec<u8>>,
}

fn greeting(flags: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(MAGIC.to_be_bytes());
    bytes.extend(OPTION_MAGIC.to_be_bytes());
    bytes.extend(flags.to_be_bytes());
    bytes
}

fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
    bytes.extend(data);
    bytes
}

fn export_info(size_bytes: u64, flags: u16) -> Vec<u8> {
    let mut data = INFO_EXPORT.to_be_bytes().to_vec();
    data.extend(size_bytes.to_be_bytes());
    data.extend(flags.to_be_bytes());
    data
}

fn asked(script: Script) -> Result<ServerExport, Failure> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(TIMEOUT)).unwrap();
    let server = thread::spawn(move || serve(theirs, script));
    let uri = Uri::parse("nbd+unix:///disk?socket=/s").unwrap();
    let outcome = Client::greet(Box::new(ours))
        .map_err(|error| broken(&uri, &error))
        .and_then(|mut client| client.export(&uri));
    server.join().unwrap();
    outcome
}

/// Reads the client's messages, and answers each from the script.
fn serve(mut stream: UnixStream, script: Script) {
    let mut flags = [0u8; 4];
    stream.write_all(&script.greeting).unwrap();
    if script.greeting.len() < 18 {
        return;
    }
    if stream.read_exact(&mut flags).is_err() {
        return;
    }
    for answer in script.answers {
        let mut header = [0u8; 16];
        if stream.read_exact(&mut header).is_err() {
            return;
        }
        let mut data = vec![0u8; be32(&header[12..]) as usize];
        stream.read_exact(&mut data).unwrap();
        stream.write_all(&answer).unwrap();
    }
}

#[test]
fn server_that_tells_everything_is_understood() {
    let block_size: Vec<u8> = [INFO_BLOCK_SIZE.to_be_bytes().to_vec()]
        .into_iter()
        .chain([1u32, 4096, 32 << 20].map(|size| size.to_be_bytes().to_vec()))
        .flatten()
        .collect();
    let mut description = INFO_DESCRIPTION.to_be_bytes().to_vec();
    description.extend(b"my\x1bdisk");
    let info = [
        reply(OPT_INFO, REP_INFO, &export_info(1 << 30, 0b101)),
        reply(OPT_INFO, REP_INFO, &block_size),
        reply(OPT_INFO, REP_INFO, &description),
        reply(OPT_INFO, REP_ACK, &[]),
    ];
    let contexts = [
        reply(OPT_LIST_META_CONTEXT, REP_META_CONTEXT, b"\0\0\0\0base:allocation"),
        reply(OPT_LIST_META_CONTEXT, REP_ACK, &[]),
    ];
    let export = asked(Script {
        greeting: greeting(3),
        answers: vec![reply(OPT_STRUCTURED_REPLY, REP_ACK, &[]), info.concat(), contexts.concat()],
    })
    .unwrap();
    assert_eq!(export.size_bytes, 1 << 30);
    assert_eq!(export.flag_names(), ["flush"]);
    assert_eq!(export.block_sizes, Some([1, 4096, 32 << 20]));
    assert_eq!(export.description.as_deref(), Some("my\\u{1b}disk"));
    assert!(export.structured_replies);
    assert_eq!(export.contexts, ["base:allocation"]);
}

#[test]
fn server_without_the_export_is_asked_which_it_has() {
    let mut entry = 4u32.to_be_bytes().to_vec();
    entry.extend(b"home");
    let failure = asked(Script {
        greeting: greeting(3),
        answers: vec![
            reply(OPT_STRUCTURED_REPLY, REP_ERROR | 1, &[]),
            reply(OPT_INFO, REP_ERR_UNKNOWN, b"nothing here"),
            [reply(OPT_LIST, REP_SERVER, &entry), reply(OPT_LIST, REP_ACK, &[])].concat(),
        ],
    })
    .unwrap_err();
    assert!(
        failure.message.contains("no such export (nothing here); it has \"home\""),
        "{failure}"
    );
}

#[test]
fn server_that_breaks_the_protocol_is_an_error() {
    let huge = {
        let mut bytes = reply(OPT_STRUCTURED_REPLY, REP_ACK, &[]);
        bytes[16..].copy_from_slice(&u32::MAX.to_be_bytes());
        bytes
    };
    let cut_list = [
        reply(OPT_STRUCTURED_REPLY, REP_ACK, &[]),
        reply(OPT_INFO, REP_ERR_UNKNOWN, &[]),
        reply(OPT_LIST, REP_SERVER, &[0xff, 0xff, 0xff, 0xff, b'x']),
        reply(OPT_LIST, REP_ACK, &[]),
    ];
    let short_info = reply(OPT_INFO, REP_INFO, &INFO_EXPORT.to_be_bytes());
    let cases = [
        (b"HTTP/1.1 400 Bad R".to_vec(), vec![], "no NBD server"),
        (greeting(0), vec![], "fixed newstyle"),
        (greeting(3)[..9].to_vec(), vec![], "closed the connection"),
        (greeting(3), vec![], "closed the connection"),
        (greeting(3), vec![huge], "4294967295 bytes"),
        (greeting(3), vec![reply(OPT_LIST, REP_ACK, &[])], "does not belong"),
        (greeting(3), vec![vec![0; 20]], "does not belong"),
        (
            greeting(3),
            vec![
                cut_list[0].clone(),
                cut_list[1].clone(),
                [&cut_list[2][..], &cut_list[3][..]].concat(),
            ],
            "cut off",
        ),
        (
            greeting(3),
            vec![cut_list[0].clone(), [short_info, reply(OPT_INFO, REP_ACK, &[])].concat()],
            "0 bytes",
        ),
    ];
    for (greeting, answers, word) in cases {
        let failure = asked(Script { greeting, answers }).unwrap_err();
        assert!(failure.message.contains(word), "{failure} lacks {word:?}");
    }
}
