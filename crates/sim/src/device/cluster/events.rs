//! The way of a request through the cluster.

use blockyard_engine::time::Nanos;

use super::placement::mix;
use super::{Cluster, Event, Kind, Place, Work, put};

impl Cluster {
    /// Sends a request from its client to the primary OSD.
    pub(super) fn send(&mut self, now: Nanos, work: Work) {
        let network = self.config.network;
        let data = if work.kind == Kind::Write { work.sectors } else { 0 };
        let link = &mut self.clients[work.client as usize];
        let sent = link.out.serve(now, times(network.client_sector, data));
        let place = put(&mut self.works, &mut self.free_works, work);
        self.at(sent + network.latency, Event::Received(place, 0));
    }

    pub(super) fn happen(&mut self, now: Nanos, event: Event, ended: &mut Vec<(Nanos, u32)>) {
        match event {
            Event::Received(place, leg) => {
                let data = self.data_to_osd(place, leg);
                let takes = times(self.config.network.host_sector, data);
                let host = self.host(place, leg);
                let read = self.hosts[host].link.into.serve(now, takes);
                self.at(read, Event::Handle(place, leg));
            }
            Event::Handle(place, leg) => {
                let takes = self.cpu(place, leg);
                let host = self.host(place, leg);
                let handled = self.hosts[host].cpus.serve(now, takes);
                self.at(handled, Event::Handled(place, leg));
            }
            Event::Handled(place, leg) => self.handled(now, place, leg),
            Event::Stored(place, leg) => self.stored(now, place, leg),
            Event::Committed(osd) => self.committed(now, osd),
            Event::Reply(place) => {
                let work = &self.works[place];
                let data = if work.kind == Kind::Read { work.sectors } else { 0 };
                let takes = times(self.config.network.client_sector, data);
                let received = self.clients[work.client as usize].into.serve(now, takes);
                self.at(received, Event::End(place));
            }
            Event::End(place) => {
                let command = self.works[place].command;
                self.free_works.push(place);
                self.commands[command].works -= 1;
                if self.commands[command].works == 0 {
                    self.end(now, command, ended);
                }
            }
            Event::Ended(place) => self.end(now, place, ended),
            Event::Recover(osd) => self.recover(now, osd),
        }
    }

    /// The primary passes a write on to the other OSDs; each OSD goes to its disk.
    fn handled(&mut self, now: Nanos, place: Place, leg: u32) {
        if self.works[place].kind == Kind::Write && leg == 0 {
            let others = self.works[place].osds.len() as u32;
            self.works[place].uncommitted = others;
            (1..others).for_each(|other| self.pass_on(now, place, other));
        }
        let store = self.config.store;
        let work = &self.works[place];
        let is_read = work.kind == Kind::Read || (work.kind == Kind::Recover && leg == 0);
        if !is_read && work.sectors <= store.journal_max_sectors {
            return self.journal(now, place, leg, work.sectors.into());
        }
        let takes = if is_read { store.read } else { store.write };
        let takes = takes + times(store.sector, work.sectors);
        let osd = work.osds[leg as usize] as usize;
        let stored = self.osds[osd].disk.serve(now, takes);
        self.at(stored, Event::Stored(place, leg));
    }

    /// The disk has read the data, or has written it.
    fn stored(&mut self, now: Nanos, place: Place, leg: u32) {
        match (self.works[place].kind, leg) {
            (Kind::Read, _) => {
                let data = self.works[place].sectors;
                let host = self.host(place, leg);
                let network = self.config.network;
                let sent = self.hosts[host].link.out.serve(now, times(network.host_sector, data));
                self.at(sent + network.latency, Event::Reply(place));
            }
            (Kind::Recover, 0) => self.pass_on(now, place, 1),
            _ => self.journal(now, place, leg, 0),
        }
    }

    /// Sends the data of a primary to another OSD.
    fn pass_on(&mut self, now: Nanos, place: Place, leg: u32) {
        let primary = self.host(place, 0);
        if primary == self.host(place, leg) {
            return self.at(now, Event::Handle(place, leg));
        }
        let network = self.config.network;
        let takes = times(network.host_sector, self.works[place].sectors);
        let sent = self.hosts[primary].link.out.serve(now, takes);
        self.at(sent + network.latency, Event::Received(place, leg));
    }

    fn journal(&mut self, now: Nanos, place: Place, leg: u32, sectors: u64) {
        let osd = self.works[place].osds[leg as usize];
        if self.osds[osd as usize].journal.add((place, leg), sectors) {
            self.commit(now, osd);
        }
    }

    /// Begins a commit, if a record waits.
    fn commit(&mut self, now: Nanos, osd: u32) {
        let store = self.config.store;
        if let Some(sectors) = self.osds[osd as usize].journal.begin() {
            let takes = store.commit + Nanos(store.journal_sector.0 * sectors);
            self.at(now + takes, Event::Committed(osd));
        }
    }

    fn committed(&mut self, now: Nanos, osd: u32) {
        let store = self.config.store;
        for (place, leg) in self.osds[osd as usize].journal.end() {
            let sectors = self.works[place].sectors;
            if sectors <= store.journal_max_sectors {
                // The data goes to the disk later. Nothing waits for it.
                let takes = store.write + times(store.sector, sectors);
                self.osds[osd as usize].disk.serve(now, takes);
            }
            self.copy_is_committed(now, place, leg);
        }
        self.commit(now, osd);
    }

    fn copy_is_committed(&mut self, now: Nanos, place: Place, leg: u32) {
        let network = self.config.network;
        if self.works[place].kind == Kind::Recover {
            self.objects_recovered += 1;
            let from = self.works[place].osds[0];
            self.free_works.push(place);
            return self.at(now + self.config.recovery.pause, Event::Recover(from));
        }
        let is_far = leg > 0 && self.host(place, 0) != self.host(place, leg);
        let work = &mut self.works[place];
        work.latest_ack = work.latest_ack.max(if is_far { now + network.latency } else { now });
        work.uncommitted -= 1;
        if work.uncommitted == 0 {
            let told = work.latest_ack + network.latency;
            self.at(told, Event::Reply(place));
        }
    }

    /// Copies the next object from an OSD to any other one, on another host if there is one.
    fn recover(&mut self, now: Nanos, from: u32) {
        let layout = self.config.layout;
        let count = u64::from(layout.hosts * layout.osds_per_host - layout.lost_osds);
        let host = |osd: u32| osd / layout.osds_per_host;
        let draws = (0..).map(|more| mix(self.events_made << 8 | more) % count);
        let mut draws = draws.map(|draw| draw as u32 + layout.lost_osds);
        let is_other =
            |to: &u32| if layout.hosts > 1 { host(*to) != host(from) } else { *to != from };
        let to = draws.by_ref().take(256).find(is_other);
        let Some(to) = to else { return };
        let work = Work {
            kind: Kind::Recover,
            command: 0,
            sectors: self.config.object_sectors,
            client: 0,
            osds: vec![from, to],
            uncommitted: 0,
            latest_ack: Nanos(0),
        };
        let place = put(&mut self.works, &mut self.free_works, work);
        self.at(now, Event::Handle(place, 0));
    }

    fn host(&self, place: Place, leg: u32) -> usize {
        let osd = self.works[place].osds[leg as usize];
        (osd / self.config.layout.osds_per_host) as usize
    }

    /// Sectors in the message to an OSD.
    fn data_to_osd(&self, place: Place, leg: u32) -> u32 {
        let work = &self.works[place];
        let has_data = match work.kind {
            Kind::Read => false,
            Kind::Write => true,
            Kind::Recover => leg > 0,
        };
        if has_data { work.sectors } else { 0 }
    }

    /// CPU time of a request in one of its OSDs.
    fn cpu(&self, place: Place, leg: u32) -> Nanos {
        let work = &self.works[place];
        let cpu = self.config.cpu;
        let (request, sector) = match (work.kind, leg) {
            (Kind::Read, _) | (Kind::Recover, 0) => (cpu.read, cpu.read_sector),
            (Kind::Write, 0) => (cpu.write, cpu.write_sector),
            (Kind::Write | Kind::Recover, _) => (cpu.copy, cpu.write_sector),
        };
        request + times(sector, work.sectors)
    }
}

fn times(sector: Nanos, sectors: u32) -> Nanos {
    Nanos(sector.0 * u64::from(sectors))
}
