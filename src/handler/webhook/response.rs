//! Evaluation of a receiver's answer.

use std::time::{Duration, SystemTime};

use http::{
    HeaderMap, StatusCode,
    header::{LOCATION, RETRY_AFTER},
    response::Parts,
};

use super::TOLD_BYTES;
use crate::{handler::HandlerError, printable::is_deceptive, secret::printable_url};

/// Returns the result of a delivery. `text` is the beginning of the body, without control characters; it may contain secrets. Only
/// statuses in `reject` reject an event. If `Retry-After` is a date, the delay is the time from `now` to this date. `at` adds the
/// receiver to an error text, and hides secrets.
pub(super) fn verdict(
    Parts { status, headers, .. }: &Parts,
    text: &str,
    reject: &[u16],
    now: SystemTime,
    at: impl Fn(String) -> String,
) -> Result<(), HandlerError> {
    if status.is_success() {
        return Ok(());
    }
    let said = if text.is_empty() { format!("answered {status}") } else { format!("answered {status}: {text}") };
    if status.is_redirection() {
        let place = headers.get(LOCATION).and_then(|place| place.to_str().ok()?.split(['?', '#']).next());
        let shown = |place: &str| printable(printable_url(place).as_bytes(), TOLD_BYTES);
        let place = place.filter(|place| !place.is_empty()).map(|place| format!(", a redirect to {}", shown(place)));
        return Err(HandlerError::Failed(at(format!(
            "answered {status}{}: redirects are not followed, set `url` to the address that takes events",
            place.unwrap_or_default()
        ))));
    }
    let said = at(said);
    Err(match *status {
        status if !reject.contains(&status.as_u16()) => match retry_after(headers, now) {
            Some(retry_after) => HandlerError::Busy { reason: said, retry_after },
            None => HandlerError::Failed(said),
        },
        StatusCode::PAYLOAD_TOO_LARGE => HandlerError::TooLarge(said),
        _ => HandlerError::Rejected(said),
    })
}

/// Parses the header `Retry-After`: a number of seconds, or a date (RFC 9110, 10.2.3). Returns `None` if it is missing, invalid or
/// not in the future.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(now).ok()?,
    };
    (!wait.is_zero()).then_some(wait)
}

/// Converts the beginning of a body to one line without control characters, and cuts it after `max` bytes.
pub(super) fn printable(body: &[u8], max: usize) -> String {
    let text = String::from_utf8_lossy(body);
    let line = text.replace(is_deceptive, " ");
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.len() <= max { line } else { format!("{}…", &line[..line.floor_char_boundary(max)]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, headers: &[(&str, &str)]) -> Parts {
        let answer = http::Response::builder().status(status);
        let answer = headers.iter().fold(answer, |answer, (name, value)| answer.header(*name, *value));
        answer.body(()).unwrap().into_parts().0
    }

    fn judge(status: u16, headers: &[(&str, &str)], text: &str) -> Result<(), HandlerError> {
        let now = httpdate::parse_http_date("Sat, 21 Nov 2026 06:40:03 GMT").unwrap();
        verdict(&answer(status, headers), text, &[400, 413, 422], now, |text| text)
    }

    #[test]
    fn status_class_decides_outcome() {
        let name = |outcome: Result<(), HandlerError>| match outcome {
            Ok(()) => "ok",
            Err(HandlerError::Failed(_)) => "failed",
            Err(HandlerError::Busy { .. }) => "busy",
            Err(HandlerError::TooLarge(_)) => "too large",
            Err(HandlerError::Rejected(_)) => "rejected",
            Err(HandlerError::Closed(_)) => "closed",
        };
        for (meaning, statuses) in [
            ("ok", &[200, 201, 202, 204, 299][..]),
            (
                "failed",
                &[300, 301, 302, 304, 307, 308, 401, 402, 403, 404, 405, 407, 408, 409, 410, 415, 425, 429, 431],
            ),
            ("failed", &[499, 500, 502, 503, 504, 599]),
            ("too large", &[413]),
            ("rejected", &[400, 422]),
        ] {
            for status in statuses {
                assert_eq!(name(judge(*status, &[], "")), meaning, "{status}");
            }
        }
        for status in [404, 408, 425, 429, 500, 503] {
            assert_eq!(name(judge(status, &[("retry-after", "3")], "")), "busy", "{status}");
        }
        for status in [302, 400, 413] {
            assert_ne!(name(judge(status, &[("retry-after", "3")], "")), "busy", "{status}");
        }
    }

    #[test]
    fn other_statuses_are_retried_by_default() {
        for status in [400, 413, 422] {
            let verdict = verdict(&answer(status, &[]), "", &[], SystemTime::UNIX_EPOCH, |text| text);
            assert!(matches!(verdict, Err(HandlerError::Failed(_))), "{status}");
        }
    }

    #[test]
    fn retry_after_is_seconds_or_date() {
        let wait = |text| match judge(503, &[("retry-after", text)], "wait") {
            Err(HandlerError::Busy { reason, retry_after }) => {
                assert_eq!(reason, "answered 503 Service Unavailable: wait");
                Some(retry_after.as_secs())
            }
            Err(HandlerError::Failed(_)) => None,
            other => panic!("{other:?}"),
        };
        for (text, seconds) in [
            ("120", Some(120)),
            (" 7 ", Some(7)),
            ("Sat, 21 Nov 2026 06:41:03 GMT", Some(60)),
            ("Saturday, 21-Nov-26 06:40:13 GMT", Some(10)),
            ("Sat Nov 21 06:40:04 2026", Some(1)),
            ("Sat, 21 Nov 2026 06:40:02 GMT", None),
            ("0", None),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
        ] {
            assert_eq!(wait(text), seconds, "{text}");
        }
    }

    #[test]
    fn redirect_is_reported_without_query_and_userinfo() {
        for (place, told) in [
            ("https://x.io/a?token=1", ", a redirect to https://x.io/a"),
            ("/login?next=1", ", a redirect to /login"),
            ("https://me:pw@x.io/", ", a redirect to https://x.io/"),
            ("//me:pw@x.io/a", ", a redirect to //x.io/a"),
            ("", ""),
        ] {
            let error = judge(302, &[("location", place)], "moved").unwrap_err().to_string();
            let rest = "redirects are not followed, set `url` to the address that takes events";
            assert_eq!(error, format!("answered 302 Found{told}: {rest}"));
        }
        let long = format!("https://x.io/{}", "a".repeat(10_000));
        assert!(judge(302, &[("location", &long)], "").unwrap_err().to_string().len() < 1_000);
    }

    #[test]
    fn response_text_is_one_short_printable_line() {
        assert_eq!(printable(b"\x1b[31mno\r\n\tsuch \x00thing\xff", 100), "[31mno such thing\u{fffd}");
        assert_eq!(printable("a\u{202e}b\u{2028}c".as_bytes(), 100), "a b c");
        assert_eq!(printable("ääää".as_bytes(), 5), "ää…");
        assert_eq!(printable(b" \n", 5), "");
    }
}
