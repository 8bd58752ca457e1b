use std::os::unix::net::UnixStream;

use super::*;
use crate::file::DeviceFile;
use crate::volume::VolumeOptions;

fn doors(server: &Server, now: Instant, stop: &StopSignal) -> usize {
    let sources = server.sources(now, stop);
    let is_door =
        |source: &Source| matches!(source, Source::Listener(_) | Source::ControlListener(_));
    sources.iter().filter(|(source, ..)| is_door(source)).count()
}

#[test]
fn doors_are_left_alone_while_there_is_no_descriptor_for_a_client() {
    let dir = tempfile::tempdir().unwrap();
    let stop = StopSignal::install().unwrap();
    let mut server = Server::new(&[], Vec::new(), ServerOptions::default()).unwrap();
    server.listen_unix(&dir.path().join("s")).unwrap();
    server.listen_control(&dir.path().join("c"), Arc::new(|_| Vec::new())).unwrap();
    let now = Instant::now();
    assert_eq!(doors(&server, now, &stop), 2);
    // The descriptor of a silent client is freed first.
    let silent = UnixStream::connect(dir.path().join("c")).unwrap();
    server.on_ready(now, Source::ControlListener(0));
    server.make_room(now);
    assert_eq!(doors(&server, now, &stop), 2);
    assert_eq!(std::io::Read::read(&mut &silent, &mut [0]).unwrap(), 0, "it was dropped");
    // Without such a client the listeners are not polled, because they would be ready all the time.
    server.make_room(now);
    assert_eq!(doors(&server, now, &stop), 0);
    assert_eq!(doors(&server, now + ACCEPT_PAUSE, &stop), 2);
    // The end of a connection may free a descriptor.
    server.on_ready(now, Source::Ends);
    assert_eq!(doors(&server, now, &stop), 2);
}

/// A volume in memory.
fn volume() -> Arc<Volume> {
    let file = DeviceFile::in_memory(1 << 20).unwrap();
    let options = VolumeOptions { controlled: true, ..VolumeOptions::default() };
    Arc::new(Volume::from_file(file, &options).unwrap())
}

/// A server of an export `a` that is closed after this time without a client.
fn closing_after(limit: Duration) -> (Server, Arc<Volume>) {
    let volume = volume();
    let export =
        ServedExport { idle_close: Some(limit), ..ServedExport::new("a", Arc::clone(&volume)) };
    let server = Server::new(&["a".into()], vec![export], ServerOptions::default());
    (server.unwrap(), volume)
}

#[test]
fn time_that_no_clock_reaches_closes_nothing() {
    let (mut server, _) = closing_after(Duration::MAX);
    server.close_idle(Instant::now());
    assert!(server.catalogue.find("a").is_some() && server.first_use.next_deadline().is_none());
}

/// The close begins on the serving thread, and its thread follows: many rounds, because a suspend
/// comes between them only sometimes.
#[test]
fn volume_is_suspended_or_closed_and_never_both() {
    const LIMIT: Duration = Duration::from_secs(1);
    let now = Instant::now();
    for _ in 0..64 {
        let (mut server, volume) = closing_after(LIMIT);
        server.close_idle(now);
        server.close_idle(now + LIMIT);
        assert!(server.catalogue.is_closed("a"));
        let problem = volume.suspend().unwrap_err().problem;
        assert!(problem.contains("being closed"), "{problem}");
    }
    let (mut server, volume) = closing_after(LIMIT);
    server.close_idle(now);
    volume.suspend().unwrap();
    server.close_idle(now + LIMIT);
    assert!(server.catalogue.find("a").is_some() && volume.status().is_suspended);
}

/// The program may write the rest of a recording then.
#[test]
fn volume_is_given_back_on_the_thread_of_its_flush() {
    let (mut server, _) = closing_after(Duration::ZERO);
    let (sender, given_back) = mpsc::channel();
    let closing = move |names| -> Release {
        let sender = sender.clone();
        Box::new(move || {
            let thread = std::thread::current().name().map(str::to_owned);
            sender.send((names, thread)).unwrap();
        })
    };
    server.on_first_use(FirstUse { open: Box::new(|_| ()), closing: Box::new(closing) });
    server.close_idle(Instant::now());
    assert!(given_back.try_recv().is_err(), "there may be clients still");
    server.go_on_with_exchanges();
    assert_eq!(given_back.recv().unwrap(), (vec!["a".to_owned()], Some("flush".to_owned())));
}
