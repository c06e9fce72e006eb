// The objects of the microscope that its modules share, for the checks of tsc.
import type { Answers } from "./protocol";

type Look = Answers["look"];
type Model = Answers["model"];
type Layer = Look["stacks"][number]["layers"][number];
type Token = Look["source"][number] & { log_prob?: number; rank?: number };

// A source of answers: a server, a saved page, or a notebook
export interface Source {
  live: boolean;
  first: Record<string, any> | null; // the request that a saved page answers
  framed?: boolean;
  model?: Model | null;
  back?: string | null;
  opens?: { layer: string; head: number };
  has: (name: string, body: object) => boolean;
  ahead: (name: string, body: object) => void;
  ask: <N extends keyof Answers>(name: N, body: object, slices?: number[][]) => Promise<Answers[N]>;
}

export interface State {
  get: (name: string) => any;
  set: (some: object) => void;
  settle: (some: object) => void;
  amend: (some: object) => void;
  on: (names: string | string[], fn: (changed: string[]) => void) => void;
  says: (name: string) => boolean;
}

// A cell: a query and a key; by: whether the reader pointed at the key
export interface Spot {
  query: number;
  key: number;
  by?: "key";
}

export interface App {
  state: State;
  source: Source;
  model: Model;
  look: Look | null;
  isWriter: boolean;
  isLooking(): boolean;
  [name: string]: any;
}

declare global {
  interface Window {
    attendo: { app: App | null; ready: boolean; drawn: Record<string, number> };
  }
  interface Uint8ArrayConstructor {
    fromBase64?: (text: string) => Uint8Array;
  }
}
