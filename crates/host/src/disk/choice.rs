//! The default elevator of a device.

use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::elevator::mq_deadline::MQ_DEADLINE;
use blockyard_engine::elevator::none::NONE;

/// `none`, unless the device is rotational and the kernel below has no scheduler either.
pub(crate) fn default_elevator(rotational: bool, kernel_scheduler: Option<&str>) -> ElevatorSpec {
    match (rotational, kernel_scheduler) {
        (true, Some("none")) => ElevatorSpec::of(&MQ_DEADLINE),
        _ => ElevatorSpec::of(&NONE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elevator_is_chosen_only_where_the_disk_seeks_and_nobody_schedules() {
        for (rotational, kernel_scheduler, chosen) in [
            (true, Some("none"), "mq-deadline"),
            (true, Some("mq-deadline"), "none"),
            (true, Some("bfq"), "none"),
            (true, None, "none"),
            (false, Some("none"), "none"),
            (false, Some("kyber"), "none"),
            (false, None, "none"),
        ] {
            let spec = default_elevator(rotational, kernel_scheduler);
            assert_eq!(spec.elevator.name, chosen, "{rotational} {kernel_scheduler:?}");
        }
    }
}
