//! The state of one front end: [`Session`].

use alloc::vec::Vec;

use super::fault::{Fault, Refusal, Violation};
use super::inflight::InflightArea;
use super::message::{BODY_MAX_BYTES, Body, HEADER_BYTES, Header, MEMORY_REGIONS_MAX};
use super::message::{MemoryRegion, request};
use super::{FEATURE_EVENT_INDEX, FEATURE_INDIRECT, FEATURE_LOG_ALL};
use super::{FEATURE_PROTOCOL, FEATURE_VERSION_1};
use crate::virtio_blk::{CONFIG_WRITEBACK_AT, FEATURE_CONFIG_WRITEBACK, FEATURE_FLUSH};

/// Length of the configuration space; zeroes follow what the device has.
const CONFIG_SPACE_BYTES: u32 = 256;
/// Limit of memory regions: more than the DIMMs of a virtual machine, and than the buffers that a
/// client without a virtual machine registers.
const MEMORY_SLOTS: usize = 128;
/// Bit of a kick, call or error message without a descriptor.
const NO_DESCRIPTOR: u64 = 1 << 8;
const QUEUE_MASK: u64 = 0xff;
/// Flag of a ring's addresses: writes to the used ring are logged.
const RING_FLAG_LOG: u32 = 1;
/// Greatest flag of a change of the configuration: by the driver, or by a migration.
const CONFIG_FLAG_MAX: u32 = 1;

/// Protocol features.
mod protocol {
    pub(super) const MQ: u64 = 1 << 0;
    pub(super) const LOG_SHMFD: u64 = 1 << 1;
    pub(super) const REPLY_ACK: u64 = 1 << 3;
    pub(super) const BACKEND_REQ: u64 = 1 << 5;
    pub(super) const CONFIG: u64 = 1 << 9;
    pub(super) const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub(super) const RESET_DEVICE: u64 = 1 << 13;
    pub(super) const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    pub(super) const STATUS: u64 = 1 << 16;
    pub(super) const OFFERED: u64 = MQ
        | LOG_SHMFD
        | REPLY_ACK
        | BACKEND_REQ
        | CONFIG
        | INFLIGHT_SHMFD
        | RESET_DEVICE
        | CONFIGURE_MEM_SLOTS
        | STATUS;
}

/// Work that a message asks of the host. [`Session::finish`] follows every action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing: the session has answered, if an answer was due.
    Nothing,
    /// Replace all memory by these regions; a descriptor came for each.
    SetMemory(Vec<MemoryRegion>),
    /// Add a region; its descriptor came.
    AddMemory(MemoryRegion),
    /// Remove a region.
    RemoveMemory(MemoryRegion),
    /// Make memory for requests in flight, of zeroes; its descriptor goes with the answer.
    MakeInflight(InflightArea),
    /// Stop every queue, and record requests in flight in this memory, whose descriptor came.
    SetInflight(InflightArea),
    /// Stop every queue, and start again with the new features those that may run.
    SetFeatures,
    /// Stop the queue, and start it again if [`Session::queue`] says that it may run.
    Configure(u16),
    /// Like `Configure`, with a new kick descriptor, which came.
    Kick(u16),
    /// A new call descriptor; `false`: none.
    Call(u16, bool),
    /// A new error descriptor; `false`: none.
    Error(u16, bool),
    /// Stop the queue when nothing of it is in flight, forget its kick descriptor, and finish with
    /// [`Outcome::Stopped`].
    Stop(u16),
    /// The driver has switched write-back caching on or off. Requests that are fetched from now on
    /// follow it. Off: what has ended is made stable first, because the driver flushes no more.
    SetWriteback(bool),
    /// Stop every queue, and note the pages that are written in this memory; its descriptor came.
    SetLog(LogArea),
    /// A new descriptor for this side's messages, which came.
    Channel,
    /// Stop every queue.
    Reset,
}

/// Result of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    Done,
    /// Not done. After [`Action::SetMemory`] there is no memory, otherwise nothing was changed.
    Failed,
    /// The queue of [`Action::Stop`] has stopped.
    Stopped {
        /// The queue.
        queue: u16,
        /// Index of the next request in its ring.
        base: u16,
    },
}

/// Features, queues and limits that a device offers.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Features of the device type.
    pub device_features: u64,
    /// Number of queues, at most 256.
    pub queues: u16,
    /// Limit of a ring's size.
    pub ring_len_max: u16,
}

/// Memory with a bit for each page of 4096 bytes of the guest, from address 0 on. No end wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogArea {
    /// Length, never zero.
    pub len_bytes: u64,
    /// Offset in its file.
    pub file_offset_bytes: u64,
}

/// Addresses of the parts of a ring, in the front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Descriptor table.
    pub descriptors: u64,
    /// Used ring.
    pub used: u64,
    /// Available ring.
    pub available: u64,
}

/// A queue as the front end has set it up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Size of the ring, zero until it is set.
    pub ring_len: u16,
    /// Addresses of the ring.
    pub addresses: Option<Addresses>,
    /// Guest address under which writes to the used ring are logged.
    pub used_log_addr: Option<u64>,
    /// Index of the next request in the ring, at its start.
    pub base: u16,
    /// Whether the queue has a kick descriptor.
    pub has_kick: bool,
    is_enabled: bool,
}

/// The back end's end of one connection.
#[derive(Debug)]
pub struct Session {
    offer: Offer,
    features: u64,
    protocol_features: u64,
    status: u8,
    queues: Vec<Queue>,
    regions: Vec<MemoryRegion>,
    has_log: bool,
    config: Vec<u8>,
    pending: Pending,
}

/// The message whose action is being executed.
#[derive(Clone, Copy, Debug)]
struct Pending {
    header: Header,
    /// The answer was appended.
    is_answered: bool,
    /// The queue that this message gives its first kick descriptor.
    first_kick: Option<u16>,
    /// The byte for write-back caching that it replaces.
    replaced_writeback: Option<u8>,
}

impl Pending {
    fn new(header: Header, is_answered: bool) -> Self {
        Self { header, is_answered, first_kick: None, replaced_writeback: None }
    }
}

impl Session {
    /// A session for a new connection; the device has this configuration.
    ///
    /// # Panics
    /// The offer has no queue, or more than 256; or the configuration is longer than its space.
    #[must_use]
    pub fn new(offer: Offer, config: &[u8]) -> Self {
        assert!((1..=256).contains(&offer.queues));
        assert!(config.len() <= CONFIG_SPACE_BYTES as usize);
        let mut space = config.to_vec();
        space.resize(CONFIG_SPACE_BYTES as usize, 0);
        let header = Header { request: 0, flags: 0, len_bytes: 0 };
        Self {
            offer,
            features: 0,
            protocol_features: 0,
            status: 0,
            queues: (0..offer.queues).map(|_| Queue::default()).collect(),
            regions: Vec::new(),
            has_log: false,
            config: space,
            pending: Pending::new(header, true),
        }
    }

    /// Negotiated features of device, ring and protocol.
    #[must_use]
    pub fn features(&self) -> u64 {
        self.features
    }

    /// The device has another configuration, as long as the first one. The driver's byte stays.
    pub fn set_device_config(&mut self, config: &[u8]) {
        let writeback = self.config[CONFIG_WRITEBACK_AT];
        self.config[..config.len()].copy_from_slice(config);
        self.config[CONFIG_WRITEBACK_AT] = writeback;
    }

    /// Whether writes may end before they are stable: the driver flushes, and has not switched
    /// write-back caching off.
    #[must_use]
    pub fn writes_back(&self) -> bool {
        let is_off = self.may_switch_writeback() && !self.has_writeback();
        self.features & FEATURE_FLUSH != 0 && !is_off
    }

    /// Whether the driver may switch write-back caching.
    #[must_use]
    pub fn may_switch_writeback(&self) -> bool {
        self.features & FEATURE_CONFIG_WRITEBACK != 0
    }

    /// The byte of the configuration that says whether caching is write-back.
    #[must_use]
    pub fn has_writeback(&self) -> bool {
        self.config[CONFIG_WRITEBACK_AT] != 0
    }

    /// A queue.
    ///
    /// # Panics
    /// The device has no queue of this number.
    #[must_use]
    pub fn queue(&self, queue: u16) -> &Queue {
        &self.queues[usize::from(queue)]
    }

    /// Whether the queue is set up, has a kick descriptor and is enabled, and the log is there if
    /// pages must be logged: QEMU may send it last.
    #[must_use]
    pub fn may_run(&self, queue: u16) -> bool {
        let Queue { ring_len, addresses, has_kick, is_enabled, .. } = *self.queue(queue);
        let is_enabled = is_enabled || self.features & FEATURE_PROTOCOL == 0;
        let can_log = self.has_log || !self.logs();
        ring_len > 0 && addresses.is_some() && has_kick && is_enabled && can_log
    }

    /// Whether pages that are written must be logged.
    #[must_use]
    pub fn logs(&self) -> bool {
        self.features & FEATURE_LOG_ALL != 0
    }

    /// Decodes a header; its body follows.
    ///
    /// # Errors
    /// The message is no request, or its body is too long.
    pub fn on_header(&self, bytes: [u8; HEADER_BYTES]) -> Result<Header, Violation> {
        let header = Header::of(bytes);
        if !header.is_request() {
            return Err(Violation::Flags(header.request));
        }
        if header.body_bytes() > BODY_MAX_BYTES {
            let Header { request, len_bytes, .. } = header;
            return Err(Violation::TooLong { request, len_bytes });
        }
        Ok(header)
    }

    /// Takes a message with this number of descriptors, and appends its answer to `out` if it has
    /// one without the world.
    ///
    /// # Errors
    /// The connection must end.
    ///
    /// # Panics
    /// The body has another length than the header says.
    pub fn on_message(
        &mut self,
        header: Header,
        body: &[u8],
        descriptors: usize,
        out: &mut Vec<u8>,
    ) -> Result<Action, Violation> {
        assert_eq!(body.len(), header.body_bytes());
        self.pending = Pending::new(header, false);
        let mut body = Body(body);
        match self.take(header, &mut body, descriptors, out) {
            Ok(action) => Ok(action),
            Err(Fault::Violation(violation)) => Err(violation),
            Err(Fault::Refusal(refusal)) => {
                self.refuse(refusal, out)?;
                Ok(Action::Nothing)
            }
        }
    }

    /// Ends the action of the last message; appends its answer if one is due.
    ///
    /// # Errors
    /// The action failed and the front end asked for no answer, so the connection must end.
    pub fn finish(&mut self, outcome: Outcome, out: &mut Vec<u8>) -> Result<(), Violation> {
        let Pending { header, is_answered, .. } = self.pending;
        if is_answered {
            return Ok(());
        }
        match outcome {
            Outcome::Done if header.request == request::SET_LOG_BASE => {
                self.answer(&0u64.to_le_bytes(), out);
            }
            Outcome::Done => self.acknowledge(0, out),
            Outcome::Failed => {
                self.undo(header.request);
                return self.refuse(Refusal::Failed, out);
            }
            Outcome::Stopped { queue, base } => {
                let mut body = [0; 8];
                body[..4].copy_from_slice(&u32::from(queue).to_le_bytes());
                body[4..6].copy_from_slice(&base.to_le_bytes());
                self.queues[usize::from(queue)].base = base;
                self.answer(&body, out);
            }
        }
        Ok(())
    }
}

impl Session {
    /// Forgets memory that the world could not map, and a descriptor that it refused.
    fn undo(&mut self, request: u32) {
        if let Some(queue) = self.pending.first_kick {
            self.queues[usize::from(queue)].has_kick = false;
        }
        if let Some(value) = self.pending.replaced_writeback {
            self.config[CONFIG_WRITEBACK_AT] = value;
        }
        match request {
            request::SET_MEM_TABLE => self.regions.clear(),
            request::ADD_MEM_REG => drop(self.regions.pop()),
            _ => {}
        }
    }

    fn answer(&mut self, body: &[u8], out: &mut Vec<u8>) {
        self.pending.header.reply(body, out);
        self.pending.is_answered = true;
    }

    fn answer_u64(&mut self, value: u64, out: &mut Vec<u8>) -> Action {
        self.answer(&value.to_le_bytes(), out);
        Action::Nothing
    }

    /// Whether the front end waits for the outcome of the last message.
    fn is_asked(&self) -> bool {
        self.protocol_features & protocol::REPLY_ACK != 0 && self.pending.header.needs_reply()
    }

    fn acknowledge(&mut self, result: u64, out: &mut Vec<u8>) {
        if self.is_asked() {
            self.answer(&result.to_le_bytes(), out);
        }
        self.pending.is_answered = true;
    }

    fn refuse(&mut self, refusal: Refusal, out: &mut Vec<u8>) -> Result<(), Violation> {
        let request = self.pending.header.request;
        if !self.is_asked() || has_answer(request) {
            return Err(Violation::Refused { request, refusal });
        }
        self.acknowledge(1, out);
        Ok(())
    }

    fn take(
        &mut self,
        header: Header,
        body: &mut Body<'_>,
        descriptors: usize,
        out: &mut Vec<u8>,
    ) -> Result<Action, Fault> {
        let Header { request, len_bytes, .. } = header;
        let wrong = Fault::Violation(Violation::Length { request, len_bytes });
        let action = match request {
            request::GET_FEATURES
            | request::GET_PROTOCOL_FEATURES
            | request::GET_QUEUE_NUM
            | request::GET_MAX_MEM_SLOTS
            | request::GET_STATUS => self.answer_u64(self.value(request), out),
            request::SET_OWNER | request::RESET_OWNER => Action::Nothing,
            request::SET_LOG_BASE => return self.set_log(body, wrong, descriptors),
            request::SET_BACKEND_REQ_FD if body.0.is_empty() => self.set_channel(descriptors)?,
            request::SET_BACKEND_REQ_FD => return Err(wrong),
            request::RESET_DEVICE => self.reset(),
            request::GET_CONFIG => return self.get_config(body, wrong, out),
            request::SET_CONFIG => return self.set_config(body, wrong),
            request::SET_MEM_TABLE => return self.set_memory(body, wrong, descriptors),
            request::ADD_MEM_REG | request::REM_MEM_REG => {
                let region = body.u64().and_then(|_| body.region());
                let region = region.filter(|_| body.0.is_empty()).ok_or(wrong)?;
                return Ok(match request {
                    request::ADD_MEM_REG => self.add_memory(region, descriptors)?,
                    _ => self.remove_memory(region)?,
                });
            }
            request::GET_INFLIGHT_FD | request::SET_INFLIGHT_FD => {
                return self.inflight(request, body, wrong, descriptors, out);
            }
            request::SET_VRING_ADDR => return self.set_addresses(body, wrong),
            request::SET_VRING_NUM
            | request::SET_VRING_BASE
            | request::SET_VRING_ENABLE
            | request::GET_VRING_BASE => {
                let (Some(queue), Some(value), []) = (body.u32(), body.u32(), body.0) else {
                    return Err(wrong);
                };
                return Ok(self.set_ring(request, queue, value)?);
            }
            request::SET_FEATURES
            | request::SET_PROTOCOL_FEATURES
            | request::SET_STATUS
            | request::SET_VRING_KICK
            | request::SET_VRING_CALL
            | request::SET_VRING_ERR => {
                let (Some(value), []) = (body.u64(), body.0) else { return Err(wrong) };
                return Ok(self.set(request, value, descriptors)?);
            }
            _ => return Err(Refusal::NotOffered.into()),
        };
        if body.0.is_empty() { Ok(action) } else { Err(wrong) }
    }

    /// The answer to a question for a number.
    fn value(&self, request: u32) -> u64 {
        match request {
            request::GET_FEATURES => self.offered_features(),
            request::GET_PROTOCOL_FEATURES => protocol::OFFERED,
            request::GET_QUEUE_NUM => self.offer.queues.into(),
            request::GET_MAX_MEM_SLOTS => MEMORY_SLOTS as u64,
            _ => self.status.into(),
        }
    }

    fn offered_features(&self) -> u64 {
        self.offer.device_features
            | FEATURE_LOG_ALL
            | FEATURE_INDIRECT
            | FEATURE_EVENT_INDEX
            | FEATURE_PROTOCOL
            | FEATURE_VERSION_1
    }

    fn set(&mut self, request: u32, value: u64, descriptors: usize) -> Result<Action, Refusal> {
        let only =
            |offered: u64| if value & !offered == 0 { Ok(()) } else { Err(Refusal::NotOffered) };
        match request {
            request::SET_FEATURES => {
                only(self.offered_features())?;
                self.features = value;
                self.has_log &= self.logs();
                // The standard's start value for a driver that can switch and cannot flush.
                if value & FEATURE_CONFIG_WRITEBACK != 0 && value & FEATURE_FLUSH == 0 {
                    self.config[CONFIG_WRITEBACK_AT] = 0;
                }
                Ok(Action::SetFeatures)
            }
            request::SET_PROTOCOL_FEATURES => {
                only(protocol::OFFERED)?;
                self.protocol_features = value;
                Ok(Action::Nothing)
            }
            request::SET_STATUS => {
                only(u8::MAX.into())?;
                self.status = value as u8;
                Ok(if value == 0 { self.reset() } else { Action::Nothing })
            }
            _ => self.set_descriptor(request, value, descriptors),
        }
    }

    /// A kick, call or error descriptor.
    fn set_descriptor(
        &mut self,
        request: u32,
        value: u64,
        descriptors: usize,
    ) -> Result<Action, Refusal> {
        if value & !(QUEUE_MASK | NO_DESCRIPTOR) != 0 {
            return Err(Refusal::NotOffered);
        }
        let queue = self.known(value & QUEUE_MASK)?;
        let is_present = value & NO_DESCRIPTOR == 0;
        if is_present {
            expect_descriptors(descriptors, 1)?;
        }
        Ok(match request {
            request::SET_VRING_CALL => Action::Call(queue, is_present),
            request::SET_VRING_ERR => Action::Error(queue, is_present),
            _ if !is_present => return Err(Refusal::NoKick),
            _ => {
                let has_kick = &mut self.queues[usize::from(queue)].has_kick;
                self.pending.first_kick = (!*has_kick).then_some(queue);
                *has_kick = true;
                Action::Kick(queue)
            }
        })
    }

    fn set_ring(&mut self, request: u32, queue: u32, value: u32) -> Result<Action, Refusal> {
        let number = self.known(queue.into())?;
        let ring_len_max = self.offer.ring_len_max;
        let has_protocol = self.features & FEATURE_PROTOCOL != 0;
        let queue = &mut self.queues[usize::from(number)];
        let sets_up = matches!(request, request::SET_VRING_NUM | request::SET_VRING_BASE);
        if sets_up && queue.has_kick {
            return Err(Refusal::Running(number));
        }
        match request {
            request::SET_VRING_NUM => {
                let fits = value.is_power_of_two() && value <= ring_len_max.into();
                let len = u16::try_from(value).ok().filter(|_| fits);
                queue.ring_len = len.ok_or(Refusal::RingSize(value))?;
            }
            request::SET_VRING_BASE => {
                queue.base = u16::try_from(value).map_err(|_| Refusal::RingIndex(value))?;
            }
            request::SET_VRING_ENABLE if !has_protocol => return Err(Refusal::NotOffered),
            request::SET_VRING_ENABLE if value > 1 => return Err(Refusal::Switch(value)),
            request::SET_VRING_ENABLE => queue.is_enabled = value == 1,
            _ => {
                queue.has_kick = false;
                return Ok(Action::Stop(number));
            }
        }
        Ok(Action::Configure(number))
    }

    fn set_addresses(&mut self, body: &mut Body<'_>, wrong: Fault) -> Result<Action, Fault> {
        let words = (body.u32(), body.u32(), body.u64(), body.u64(), body.u64(), body.u64());
        let (
            Some(queue),
            Some(flags),
            Some(descriptors),
            Some(used),
            Some(available),
            Some(log_addr),
        ) = words
        else {
            return Err(wrong);
        };
        if !body.0.is_empty() {
            return Err(wrong);
        }
        let queue = self.known(queue.into())?;
        let is_aligned =
            descriptors.is_multiple_of(16) && used.is_multiple_of(4) && available.is_multiple_of(2);
        if flags & !RING_FLAG_LOG != 0 || !is_aligned {
            return Err(Refusal::RingAddresses.into());
        }
        let addresses = Addresses { descriptors, used, available };
        let logged = flags & RING_FLAG_LOG != 0;
        let set_up = &mut self.queues[usize::from(queue)];
        set_up.addresses = Some(addresses);
        set_up.used_log_addr = logged.then_some(log_addr);
        Ok(Action::Configure(queue))
    }

    fn get_config(
        &mut self,
        body: &mut Body<'_>,
        wrong: Fault,
        out: &mut Vec<u8>,
    ) -> Result<Action, Fault> {
        let (Some(offset), Some(len), Some(_)) = (body.u32(), body.u32(), body.u32()) else {
            return Err(wrong);
        };
        let end = offset.checked_add(len).filter(|end| *end <= CONFIG_SPACE_BYTES);
        let (Some(end), true) = (end, body.0.len() == len as usize) else { return Err(wrong) };
        let mut reply = Vec::with_capacity(12 + len as usize);
        [offset, len, 0].iter().for_each(|word| reply.extend_from_slice(&word.to_le_bytes()));
        reply.extend_from_slice(&self.config[offset as usize..end as usize]);
        self.answer(&reply, out);
        Ok(Action::Nothing)
    }

    /// Only the byte for write-back caching is writable.
    fn set_config(&mut self, body: &mut Body<'_>, wrong: Fault) -> Result<Action, Fault> {
        let (Some(offset), Some(len_bytes), Some(flags)) = (body.u32(), body.u32(), body.u32())
        else {
            return Err(wrong);
        };
        if body.0.len() != len_bytes as usize {
            return Err(wrong);
        }
        if flags > CONFIG_FLAG_MAX || self.features & FEATURE_CONFIG_WRITEBACK == 0 {
            return Err(Refusal::NotOffered.into());
        }
        let [value] = *body.0 else { return Err(Refusal::Config { offset, len_bytes }.into()) };
        if offset as usize != CONFIG_WRITEBACK_AT {
            return Err(Refusal::Config { offset, len_bytes }.into());
        }
        if value > 1 {
            return Err(Refusal::Switch(value.into()).into());
        }
        let replaced = core::mem::replace(&mut self.config[CONFIG_WRITEBACK_AT], value);
        self.pending.replaced_writeback = Some(replaced);
        Ok(Action::SetWriteback(value == 1))
    }

    /// Its body has padding to 24 bytes, in both directions.
    fn inflight(
        &mut self,
        request: u32,
        body: &mut Body<'_>,
        wrong: Fault,
        descriptors: usize,
        out: &mut Vec<u8>,
    ) -> Result<Action, Fault> {
        let words = (body.u64(), body.u64(), body.u16(), body.u16(), body.u32());
        let (Some(len_bytes), Some(file_offset_bytes), Some(queues), Some(ring_len), Some(_)) =
            words
        else {
            return Err(wrong);
        };
        if !body.0.is_empty() {
            return Err(wrong);
        }
        let is_known = (1..=self.offer.queues).contains(&queues)
            && (1..=self.offer.ring_len_max).contains(&ring_len);
        let refusal = Refusal::Inflight { queues, ring_len };
        if !is_known {
            return Err(refusal.into());
        }
        if request == request::GET_INFLIGHT_FD {
            let area = InflightArea::new(queues, ring_len);
            let mut reply = area.len_bytes.to_le_bytes().to_vec();
            reply.extend_from_slice(&area.file_offset_bytes.to_le_bytes());
            reply.extend_from_slice(&queues.to_le_bytes());
            reply.extend_from_slice(&ring_len.to_le_bytes());
            reply.extend_from_slice(&[0; 4]);
            self.answer(&reply, out);
            return Ok(Action::MakeInflight(area));
        }
        expect_descriptors(descriptors, 1)?;
        let area = InflightArea { len_bytes, file_offset_bytes, queues, ring_len };
        if !area.is_sound() {
            return Err(refusal.into());
        }
        Ok(Action::SetInflight(area))
    }

    /// UML sends room for more regions than it has.
    fn set_memory(
        &mut self,
        body: &mut Body<'_>,
        wrong: Fault,
        descriptors: usize,
    ) -> Result<Action, Fault> {
        let (Some(count), Some(_)) = (body.u32(), body.u32()) else { return Err(wrong) };
        let count = count as usize;
        if count > MEMORY_REGIONS_MAX || body.0.len() > MEMORY_REGIONS_MAX * 32 {
            return Err(wrong);
        }
        let regions: Option<Vec<_>> = (0..count).map(|_| body.region()).collect();
        let regions = regions.ok_or(wrong)?;
        expect_descriptors(descriptors, count)?;
        for (index, region) in regions.iter().enumerate() {
            check_region(region, &regions[..index])?;
        }
        self.regions.clone_from(&regions);
        Ok(Action::SetMemory(regions))
    }

    fn add_memory(&mut self, region: MemoryRegion, descriptors: usize) -> Result<Action, Refusal> {
        expect_descriptors(descriptors, 1)?;
        if self.regions.len() >= MEMORY_SLOTS {
            return Err(Refusal::MemorySlots);
        }
        check_region(&region, &self.regions)?;
        self.regions.push(region);
        Ok(Action::AddMemory(region))
    }

    fn remove_memory(&mut self, region: MemoryRegion) -> Result<Action, Refusal> {
        let place = self.regions.iter().position(|other| other.is(&region));
        let place = place.ok_or(Refusal::NoSuchMemory)?;
        Ok(Action::RemoveMemory(self.regions.swap_remove(place)))
    }

    fn set_log(
        &mut self,
        body: &mut Body<'_>,
        wrong: Fault,
        descriptors: usize,
    ) -> Result<Action, Fault> {
        let (Some(len_bytes), Some(file_offset_bytes), []) = (body.u64(), body.u64(), body.0)
        else {
            return Err(wrong);
        };
        if self.protocol_features & protocol::LOG_SHMFD == 0 {
            return Err(Refusal::NotOffered.into());
        }
        expect_descriptors(descriptors, 1)?;
        let end = file_offset_bytes.checked_add(len_bytes);
        if len_bytes == 0 || end.is_none_or(|end| end > i64::MAX as u64) {
            return Err(Refusal::Memory.into());
        }
        self.has_log = true;
        Ok(Action::SetLog(LogArea { len_bytes, file_offset_bytes }))
    }

    fn set_channel(&self, descriptors: usize) -> Result<Action, Refusal> {
        if self.protocol_features & protocol::BACKEND_REQ == 0 {
            return Err(Refusal::NotOffered);
        }
        expect_descriptors(descriptors, 1)?;
        Ok(Action::Channel)
    }

    /// The front end sets everything up again.
    fn reset(&mut self) -> Action {
        self.status = 0;
        self.queues.iter_mut().for_each(|queue| *queue = Queue::default());
        Action::Reset
    }

    fn known(&self, queue: u64) -> Result<u16, Refusal> {
        let number = u16::try_from(queue).ok().filter(|number| *number < self.offer.queues);
        number.ok_or(Refusal::NoSuchQueue(queue))
    }
}

/// Messages with an answer of their own, which cannot say that they failed.
fn has_answer(request: u32) -> bool {
    matches!(
        request,
        request::GET_VRING_BASE
            | request::GET_CONFIG
            | request::GET_INFLIGHT_FD
            | request::SET_LOG_BASE
    )
}

fn expect_descriptors(came: usize, expected: usize) -> Result<(), Refusal> {
    if came == expected { Ok(()) } else { Err(Refusal::Descriptors { came, expected }) }
}

fn check_region(region: &MemoryRegion, others: &[MemoryRegion]) -> Result<(), Refusal> {
    if !region.is_sound() || others.iter().any(|other| other.overlaps(region)) {
        return Err(Refusal::Memory);
    }
    Ok(())
}
