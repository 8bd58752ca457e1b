//! Messages to a target of the program.

use std::fmt;
use std::sync::Arc;

use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::bio::{BlkStatus, Op, Sector};
use blockyard_engine::dm::control::{MessageError, Suspend, TargetControl};
use blockyard_engine::dm::registry::{Arguments, Keys, Needs, Opened, TargetType};
use blockyard_engine::dm::table::{Flushes, Reserve, TargetFacts, TargetSpec};
use blockyard_engine::dm::{Mapped, Part, Target, TargetCx};
use blockyard_host::volume::control::Message;
use blockyard_host::volume::{Volume, VolumeOptions};

static ONCE: TargetType =
    TargetType { name: "once", arguments: "", parse: |_, _| Ok(Arc::new(Once(None))) };

/// Takes one message.
#[derive(Clone, Debug)]
struct Once(Option<String>);

impl Arguments for Once {
    fn write(&self, _: Keys, _: &mut dyn fmt::Write) -> fmt::Result {
        Ok(())
    }

    fn needs(&self, _: Sector) -> Needs<'_> {
        Needs::default()
    }

    fn open(&self, _: Opened) -> Result<Arc<dyn TargetSpec>, String> {
        Ok(Arc::new(self.clone()))
    }
}

impl TargetSpec for Once {
    fn facts(&self) -> TargetFacts {
        TargetFacts { has_control: true, ..TargetFacts::new(Flushes::To(Vec::new())) }
    }

    fn build(&self, _: u16, _: Reserve) -> Box<dyn Target> {
        Box::new(self.clone())
    }
}

impl Target for Once {
    fn map(&mut self, _: Part, _: &mut TargetCx<'_>) -> Mapped {
        Mapped::Ended(BlkStatus::Ok)
    }

    fn on_cqe(&mut self, _: u32, _: BlkStatus, _: &mut TargetCx<'_>) {}

    fn max_io(&self, _: Op, _: Sector) -> Sector {
        Sector(u64::MAX)
    }

    fn is_idle(&self) -> bool {
        true
    }

    fn control(&mut self) -> Option<&mut dyn TargetControl> {
        Some(self)
    }
}

impl TargetControl for Once {
    fn message(&mut self, text: &str, _: &mut TargetCx<'_>) -> Result<(), MessageError> {
        match &self.0 {
            Some(_) => Err(MessageError::Invalid("a message came before".into())),
            None => {
                self.0 = Some(text.into());
                Ok(())
            }
        }
    }

    fn info(&self) -> String {
        self.0.clone().unwrap_or_default()
    }

    fn table(&self) -> String {
        String::new()
    }

    fn suspend(&mut self, _: Suspend, _: &mut TargetCx<'_>) {}

    fn resume(&mut self, _: &mut TargetCx<'_>) {}
}

/// Each message is checked on a new target, and so without the messages before it.
#[test]
fn message_that_an_earlier_one_makes_invalid_has_no_effect() {
    let options =
        VolumeOptions { controlled: true, targets: vec![&ONCE], ..VolumeOptions::default() };
    let volume = Volume::from_table(&SecretBytes::copy_of(b"0 64 once"), &options).unwrap();
    for text in ["first", "second"] {
        volume.message(0, &Message::Target(text.into())).unwrap();
    }
    assert!(volume.status().targets.contains("first"), "{}", volume.status().targets);
}
