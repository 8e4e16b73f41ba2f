//! One-line description of a kube client's error. The text of such an error repeats nested causes.

use std::{error::Error, io};

use hyper_util::client::legacy;

/// Describes an error and its causes, without repeated texts.
pub(crate) fn describe(error: &(dyn Error + 'static)) -> String {
    let mut said: Vec<String> = Vec::new();
    for cause in causes(error) {
        // the outermost texts of the kube crate and of the HTTP client only repeat their causes
        let is_wrapper = cause.is::<kube::Error>() && cause.source().is_some() || cause.is::<legacy::Error>();
        let text = cause.to_string();
        if !is_wrapper && !said.iter().any(|before| before.contains(&text)) {
            said.push(text);
        }
    }
    if said.is_empty() { error.to_string() } else { said.join(": ") }
}

/// Returns an error and its causes. An [`io::Error`] hides the error that it wraps; here the wrapped error is a
/// cause.
pub(crate) fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let cause = |error: &'a (dyn Error + 'static)| match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref)
    {
        Some(inner) => Some(inner as &'a (dyn Error + 'static)),
        None => error.source(),
    };
    std::iter::successors(Some(error), move |error| cause(*error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_each_cause_once() {
        let inside = io::Error::new(io::ErrorKind::InvalidData, "certificate unknown");
        let error = kube::Error::Service(Box::new(io::Error::other(inside)));
        assert_eq!(describe(&error), "certificate unknown");
        assert_eq!(describe(&io::Error::from(io::ErrorKind::TimedOut)), "timed out");
    }
}
