//! Rules for a failed GET: repeat it with the same query (T-1, T-3), or pass the failure to the reflector (T-2, D-4).

use std::time::Duration;

use super::Failure;

/// Maximum number of repeats of one GET (T-1).
const REPEATS_MAX: u32 = 10;
/// Delay before a GET is repeated after a lost connection (T-3).
const RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// Longest `Retry-After` after which the GET is repeated. If it is longer, the cycle fails, and the reflector waits before the next
/// one.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// Returns the delay before the same GET is sent again. `None` passes `failure` to the reflector. `repeats` is the number of repeats
/// of this GET so far.
///
/// A GET is repeated after a lost connection, and after 429 or 5xx with a `Retry-After` of at most [`RETRY_AFTER_MAX`]. It is not
/// repeated after failures that the reflector handles: a refused connection, a timeout, which was already a long wait, an
/// expired version, or a too large version (D-4).
pub(crate) fn repeat_after(failure: &Failure, repeats: u32) -> Option<Duration> {
    match failure {
        _ if repeats >= REPEATS_MAX => None,
        Failure::Disconnected(_) => Some(RECONNECT_DELAY),
        Failure::Status(status) if status.is_expired() || status.too_large => None,
        Failure::Status(status) if status.code == 429 || (500..600).contains(&status.code) => {
            status.retry_after.filter(|after| *after <= RETRY_AFTER_MAX)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Status, *};

    fn status(code: u16, retry_after: Option<u64>) -> Failure {
        Failure::Status(Status { code, retry_after: retry_after.map(Duration::from_secs), ..Status::default() })
    }

    /// Rules: T-1, T-3, D-4.
    #[test]
    fn only_retryable_failures_are_retried() {
        let too_large = Status { too_large: true, ..status(504, Some(1)).status().unwrap().clone() };
        let expired = Status { reason: "Expired".into(), ..status(503, Some(1)).status().unwrap().clone() };
        let second = Duration::from_secs;
        for (failure, expected) in [
            (status(429, Some(3)), Some(second(3))),
            (status(500, Some(0)), Some(second(0))),
            (status(503, Some(1)), Some(second(1))),
            (status(429, None), None),
            (status(503, None), None),
            (status(503, Some(3600)), None),
            (status(404, Some(1)), None),
            (status(403, Some(1)), None),
            (status(410, Some(1)), None),
            (Failure::Status(too_large), None),
            (Failure::Status(expired), None),
            (Failure::Disconnected("reset".into()), Some(second(1))),
            (Failure::TimedOut(second(60)), None),
            (Failure::Refused, None),
            (Failure::NotAList("Table".into()), None),
            (Failure::Undecodable("x".into()), None),
            (Failure::FrameTooLong { max_bytes: 1, object: None }, None),
            (Failure::Request("tls".into()), None),
        ] {
            assert_eq!(repeat_after(&failure, 9), expected, "{failure:?}");
            assert_eq!(repeat_after(&failure, 10), None, "{failure:?}");
        }
    }
}
