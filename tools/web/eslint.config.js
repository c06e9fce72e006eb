// The rules for the JavaScript of the pages. `make lint` runs them from the root of the repository.
import js from "@eslint/js";
import globals from "globals";

// A text of a model must never become HTML or code
const HTML = ["innerHTML", "outerHTML", "srcdoc", "insertAdjacentHTML", "setHTMLUnsafe", "createContextualFragment"];
const WRITES = ["write", "writeln"].map((property) => ({ object: "document", property }));
const AS_TEXT = "Pass texts to el() as children, which become text nodes.";

// web.joined() joins the modules of a saved page, and knows only these forms of imports and exports
const JOINED = "A module has only named imports at the top and `export` before a declaration.";
const UNJOINED = [
  "ImportDefaultSpecifier",
  "ImportNamespaceSpecifier",
  "ImportExpression",
  "ExportAllDeclaration",
  "ExportDefaultDeclaration",
  "ExportNamedDeclaration[declaration=null]",
  "Program > :not(ImportDeclaration) ~ ImportDeclaration",
];

export default [
  { ignores: ["**/bridge.js"] }, // runs in the notebook, in the form that anywidget requires
  js.configs.recommended,
  {
    languageOptions: { ecmaVersion: 2024, sourceType: "module", globals: globals.browser },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      eqeqeq: "error",
      "no-alert": "error",
      "no-duplicate-imports": "error",
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      "no-script-url": "error",
      "no-shadow": ["error", { hoist: "functions" }],
      "no-throw-literal": "error",
      "no-unused-vars": ["error", { argsIgnorePattern: "^_", caughtErrors: "none" }],
      "no-var": "error",
      "object-shorthand": ["error", "properties"],
      "prefer-const": ["error", { destructuring: "all" }],
      "max-lines": ["error", 400],
      "max-lines-per-function": ["error", { max: 120, skipBlankLines: true, skipComments: true }],
      "no-restricted-properties": [
        "error",
        ...[...HTML.map((property) => ({ property })), ...WRITES].map((at) => ({ ...at, message: AS_TEXT })),
      ],
      "no-restricted-syntax": [
        "error",
        { selector: `Property[key.name=/^(${HTML.join("|")})$/]`, message: AS_TEXT },
        { selector: `Literal[value=/^(${HTML.join("|")})$/]`, message: AS_TEXT },
        {
          selector: "CallExpression[callee.property.name='setAttribute'] > Literal[value=/^(style|on\\w+)$/]",
          message: "The content security policy ignores this attribute. Set a property of the element.",
        },
        ...UNJOINED.map((selector) => ({ selector, message: JOINED })),
      ],
    },
  },
];
