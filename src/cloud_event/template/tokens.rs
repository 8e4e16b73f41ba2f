//! Checks of a template's tokens, before they are parsed.
//!
//! The parser, the compiler and the drop of the syntax tree are recursive, and for some forms, such as `not not x` or `a.b.c`, the
//! crate has no limit of its own.

use minijinja::{
    machinery::{Span, Token, tokenize},
    syntax::SyntaxConfig,
};

/// Maximum number of levels. Real templates have fewer than 20, and a thread's default stack is enough for this many.
pub(super) const LEVELS_MAX: usize = 150;

/// Statements that combine templates. A template is complete in itself.
const COMBINING: [&str; 5] = ["block", "extends", "from", "import", "include"];

/// Returns why a template is refused, and the place of the cause.
pub(super) fn refused(text: &str) -> Option<(Span, String)> {
    let mut levels = Levels { open: vec![0], branches: Vec::new(), opens_block: false };
    for token in tokenize(text, false, SyntaxConfig::default()) {
        let Ok((token, span)) = token else { return None }; // the parser reports the error
        match token {
            Token::Ident(name) if levels.opens_block && COMBINING.contains(&name) => {
                return Some((span, format!("syntax error: unknown statement {name}")));
            }
            _ => levels.take(&token),
        }
        if levels.depth() > LEVELS_MAX {
            let levels = "levels of operators, dots, brackets, `if` and `elif`";
            return Some((span, format!("nested too deeply: expected at most {LEVELS_MAX} {levels}")));
        }
    }
    None
}

/// Upper bounds of the depth of the syntax tree at a token.
struct Levels {
    /// For each open bracket of the tag, and for the tag itself: the number of operators since the last comma. Each may add a level.
    open: Vec<usize>,
    /// Number of `elif` of each open `if`. The tree of an `elif` is inside the tree of the branch before it.
    branches: Vec<usize>,
    /// Set directly after the start of a block.
    opens_block: bool,
}

impl Levels {
    fn depth(&self) -> usize {
        self.open.iter().sum::<usize>() + self.branches.iter().sum::<usize>() + self.branches.len()
    }

    fn take(&mut self, token: &Token<'_>) {
        let opens_block = std::mem::replace(&mut self.opens_block, matches!(token, Token::BlockStart));
        match token {
            Token::VariableStart | Token::BlockStart => self.open = vec![0],
            Token::Ident("if") if opens_block => self.branches.push(0),
            Token::Ident("elif") if opens_block => self.branches.last_mut().map_or((), |branch| *branch += 1),
            Token::Ident("endif") if opens_block => drop(self.branches.pop()),
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => {
                self.count();
                self.open.push(0);
            }
            Token::ParenClose | Token::BracketClose | Token::BraceClose if self.open.len() > 1 => drop(self.open.pop()),
            Token::Comma | Token::Colon | Token::Assign => self.open.last_mut().map_or((), |count| *count = 0),
            Token::Ident(name) if !matches!(*name, "not" | "and" | "or" | "if" | "else" | "is" | "in") => {}
            Token::TemplateData(_)
            | Token::VariableEnd
            | Token::BlockEnd
            | Token::Str(_)
            | Token::String(_)
            | Token::Int(_)
            | Token::Int128(_)
            | Token::Float(_) => {}
            _ => self.count(),
        }
    }

    fn count(&mut self) {
        if let Some(count) = self.open.last_mut() {
            *count += 1;
        }
    }
}
