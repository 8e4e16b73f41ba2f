//! `Status` objects: what the server says when it does not do what was asked.

use std::time::Duration;

use serde_json::Value;

use crate::list_watch::Status;

/// What a message that is no `Status` may fill of a log line, in bytes.
const MESSAGE_BYTES_MAX: usize = 512;

/// Returns the `Status` that these bytes are.
pub(super) fn of_object(json: &[u8]) -> Option<Status> {
    let status: Value = serde_json::from_slice(json).ok().filter(|status: &Value| status["kind"] == "Status")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let says_too_large = |value: &Value| text(value).starts_with("Too large resource version");
    let is_too_large =
        |cause: &Value| cause["reason"] == "ResourceVersionTooLarge" || says_too_large(&cause["message"]);
    let details = &status["details"];
    Some(Status {
        code: status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(0),
        reason: text(&status["reason"]),
        message: text(&status["message"]),
        too_large: says_too_large(&status["message"])
            || details["causes"].as_array().into_iter().flatten().any(is_too_large),
        retry_after: details["retryAfterSeconds"].as_u64().filter(|s| *s > 0).map(Duration::from_secs),
    })
}

/// Returns what an HTTP error says: the `Status` in its body, or its code and the beginning of whatever the body is.
///
/// `retry_after` is the header's value; it wins over the body's where it is a number of seconds (T-1).
pub fn decode_status(code: u16, retry_after: Option<&str>, body: &[u8]) -> Status {
    let mut status = of_object(body).unwrap_or_else(|| Status { message: beginning(body), ..Status::default() });
    if status.code == 0 {
        status.code = code;
    }
    if let Some(seconds) = retry_after.and_then(|text| text.trim().parse().ok()) {
        status.retry_after = Some(Duration::from_secs(seconds));
    }
    status
}

fn beginning(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(MESSAGE_BYTES_MAX)]);
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if body.len() > MESSAGE_BYTES_MAX {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a6_too_large_is_told_in_three_ways() {
        for body in [
            r#"{"kind":"Status","code":504,"reason":"Timeout","message":"x","details":{"causes":[{"reason":"ResourceVersionTooLarge"}],"retryAfterSeconds":1}}"#,
            r#"{"kind":"Status","code":504,"message":"Too large resource version: 5, current: 3"}"#,
            r#"{"kind":"Status","code":504,"details":{"causes":[{"message":"Too large resource version"}]}}"#,
        ] {
            let status = decode_status(504, None, body.as_bytes());
            assert!(status.too_large, "{body}");
            assert_eq!(status.code, 504);
        }
        assert!(!decode_status(504, None, br#"{"kind":"Status","message":"Timeout"}"#).too_large);
    }

    #[test]
    fn t1_the_header_says_how_long_to_wait_and_else_the_body() {
        let body = br#"{"kind":"Status","code":429,"details":{"retryAfterSeconds":7}}"#;
        let seconds = |header| decode_status(429, header, body).retry_after.map(|after| after.as_secs());
        assert_eq!(seconds(None), Some(7));
        assert_eq!(seconds(Some("3")), Some(3));
        assert_eq!(seconds(Some("Wed, 21 Oct 2026 07:28:00 GMT")), Some(7));
        assert_eq!(seconds(Some("-1")), Some(7));
        assert_eq!(decode_status(503, None, b"").retry_after, None);
    }

    #[test]
    fn an_error_that_is_no_status_keeps_its_code_and_text() {
        let status = decode_status(502, None, b"<html>\n  Bad\xff Gateway</html>");
        assert_eq!((status.code, &*status.message), (502, "<html> Bad\u{fffd} Gateway</html>"));
        assert_eq!(decode_status(500, None, br#"{"kind":"Pod","code":1}"#).code, 500);
        assert!(decode_status(410, None, b"gone").is_expired());
        assert!(decode_status(500, None, &[b'x'; 10_000]).message.len() < 600);
        assert_eq!(decode_status(500, None, br#"{"kind":"Status","code":99999999}"#).code, 500);
    }
}
