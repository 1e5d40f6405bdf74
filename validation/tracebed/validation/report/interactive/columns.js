// Decoding of the data block of the page. columns.py describes the encoding.

async function readColumns(base64) {
  const bytes = await inflated(base64);
  let offset = 4 + new DataView(bytes.buffer).getUint32(0, true);
  const data = JSON.parse(new TextDecoder().decode(bytes.subarray(4, offset)));
  for (const [name, length, base, rows] of data.columns) {
    data[name] = decoded(bytes, offset, length);
    if (base) addBase(data[name], data[base], rows && data[rows], data.missing);
    offset += 4 * length;
  }
  return data;
}

function addBase(column, base, rows, missing) {
  for (let i = 0; i < column.length; i++) {
    const from = base[rows ? rows[i] : i];
    if (column[i] !== missing && from !== missing) column[i] += from;
  }
}

// Returns a column from its zigzag differences, which are stored as four planes of bytes.
function decoded(bytes, offset, length) {
  const column = new Int32Array(length);
  const [second, third, fourth] = [offset + length, offset + 2 * length, offset + 3 * length];
  for (let i = 0, value = 0; i < length; i++) {
    const zigzag = bytes[offset + i] | (bytes[second + i] << 8) | (bytes[third + i] << 16) | (bytes[fourth + i] << 24);
    value = (value + ((zigzag >>> 1) ^ -(zigzag & 1))) | 0; // modulo 2^32, as in the encoder
    column[i] = value;
  }
  return column;
}
